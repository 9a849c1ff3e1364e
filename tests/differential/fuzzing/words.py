"""Regular expressions of calls and of sources of programs that several rules have."""

from __future__ import annotations

VALUES = "NonTensor"
ARITHMETIC = "expand_as|all|any|apply|named_apply|norm|new_.*|prod|nansum|sum|add|sub|mul|div|reflected .*|operator .*"
ADDS = "add|r?sub|mul|div|pow|(operator|reflected) [-+*/]|operator [*][*]|torch[.](add|mul|sub)"
SUMS = "all|any|sum|nansum|mean|nanmean|prod|std|var|amax|amin|max|min|quantile"
MORE = r"result.*\bt\(\["
LOGIC = (
    r"apply|masked_select|maximum|minimum|lerp|neg|where|tree_map|addc.*|clamp.*|torch[.](add|sub|mul)|bitwise_.*|logical_.*|norm"
    r"|(operator|reflected) [\^|&]"
)
RESHAPES = r"reshape|view|unflatten|(torch[.])?flatten|repeat|repeat_interleave"
NO_KEY = r"is not a(n| )|empty tuple"
IN_PLACE = r"inplace=(?!False|None|\[\]|\(\))"
WHOLE = r"x\[(I\[)?(\.\.\.|\(\)|:(, :)*)\]"
