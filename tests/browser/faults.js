// Faults of layout that a reader sees: content beyond the right edge, and text that is hard to tell from its background.
(() => {
  const seen = (element) => {
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    return style.visibility === "visible" && box.width > 1 && box.height > 1 && element.checkVisibility({checkOpacity: true});
  };
  const name = (element) =>
    element.tagName.toLowerCase() + (element.id ? "#" + element.id : "") + [...element.classList].map((c) => "." + c).join("");

  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  canvas.canvas.width = canvas.canvas.height = 1;
  const cache = new Map();
  // Any CSS color as [red, green, blue, alpha], the alpha from 0 to 1.
  const color = (text) => {
    if (!cache.has(text)) {
      const plain = text.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
      if (plain) cache.set(text, [+plain[1], +plain[2], +plain[3], plain[4] === undefined ? 1 : +plain[4]]);
      else {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        cache.set(text, [r, g, b, a / 255]);
      }
    }
    return cache.get(text);
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const background = (element) => {
    const layers = [];
    for (let node = element; node; node = node.parentElement) {
      const layer = color(getComputedStyle(node).backgroundColor);
      if (layer[3] > 0) layers.push(layer);
      if (layer[3] === 1) break;
    }
    const dark = getComputedStyle(document.documentElement).colorScheme.startsWith("dark");
    return layers.reverse().reduce((below, layer) => over(layer, below), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, two) => {
    const [low, high] = [luminance(one), luminance(two)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  return {
    overflow() {
      const width = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= width) return [];
      const scrolls = (element) => {  // within a box that scrolls or clips, it makes no page scroll
        for (let node = element.parentElement; node && node !== document.body; node = node.parentElement)
          if (getComputedStyle(node).overflowX !== "visible") return true;
        return false;
      };
      const found = [...document.body.querySelectorAll("*")].filter(
        (element) => seen(element) && element.getBoundingClientRect().right > width + 1 && !scrolls(element));
      const inner = found.filter((element) => !found.some((other) => other !== element && element.contains(other)));
      return [`the page is ${document.documentElement.scrollWidth} px wide`, ...inner.slice(0, 5).map(name)];
    },
    contrast(least) {
      const found = new Map(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      for (let text = walker.nextNode(); text; text = walker.nextNode()) {
        const element = text.parentElement;
        if (!text.data.trim() || element.closest("script, style, noscript, template") || !seen(element)) continue;
        if (element.disabled) continue;  // what cannot be used may be pale
        const style = getComputedStyle(element), below = background(element);
        const ink = color(element instanceof SVGElement ? style.fill : style.color);
        let alpha = ink[3];
        for (let node = element; node; node = node.parentElement) alpha *= +getComputedStyle(node).opacity;
        const contrast = ratio(over([...ink.slice(0, 3), alpha], below), below);
        if (contrast < least - 0.005) {
          const key = `${name(element)} ${contrast.toFixed(2)}`;
          if (!found.has(key)) found.set(key, `${key} ${JSON.stringify(text.data.trim().slice(0, 40))}`);
        }
      }
      return [...found.values()].slice(0, 20);
    },
  };
})()
