(() => {
  const shown = (e) => { const r = e.getBoundingClientRect(); return r.width > 0.5 && r.height > 0.5; };
  const name = (e) => e.tagName + "." + (e.getAttribute("class") || "") + " " + e.textContent.trim().slice(0, 40);
  const root = document.documentElement;
  const out = { width: root.clientWidth, wide: root.scrollWidth, nodes: 0, hidden: [], pale: [], dumb: [], long: 0 };

  const drawn = new Set();
  for (const box of document.querySelectorAll("[data-node]")) {
    const svg = box.querySelector("svg"), bars = svg ? [...svg.querySelectorAll("rect")] : [];
    if (bars.length === 0 || ![svg, ...bars].every(shown)) out.hidden.push(box.dataset.node);
    drawn.add(box.dataset.node);
  }
  out.nodes = drawn.size;
  for (const svg of document.querySelectorAll("svg")) if (!svg.getAttribute("aria-label")) out.dumb.push(name(svg));
  for (const row of document.querySelectorAll("tbody tr")) if (shown(row) && row.checkVisibility({ contentVisibilityAuto: true })) out.long++;

  // WCAG 2.2, contrast of text: 4.5 to 1, of large text 3 to 1.
  const parse = (c) => c.match(/[\d.]+/g).map(Number);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  for (const e of document.body.querySelectorAll("*")) {
    if (e.closest("svg") || !shown(e) || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(e), a = light(parse(style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) out.pale.push(ratio.toFixed(1) + " " + name(e));
  }
  return out;
})()
