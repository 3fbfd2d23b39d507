// What both explorers share: elements, the theme of the page around them, and a model that may have lost its kernel.

/** An element: h("button", {class: "bit", onclick: f, "aria-pressed": true}, "0", child, …). */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else set(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set an attribute, or remove it for null and undefined. */
export function set(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Text with ^(…) turned into superscripts, as nodes; a minus inside stays a real minus. */
export function withPowers(text) {
  return text
    .split(/(\^\([^)]*\)|\^[−-]?\w+)/)
    .map((part) => (part.startsWith("^") ? h("sup", {}, part.replace(/^\^\(?|\)$/g, "")) : part));
}

/** An entry of a legend. */
export const key = (name, text) => h("span", { class: "key" }, h("span", { class: `swatch ${name}` }), ` ${text}`);

let counter = 0;
export const uniqueId = (stem) => `ampedu-${stem}-${(counter += 1)}`;

/** Attach a shadow root, so that the page's style sheet and ours leave each other alone, and follow its theme. */
export function openRoot(el, style, label) {
  const host = h("div", { "data-lm-suppress-shortcuts": "true" }); // JupyterLab: the keys pressed in here are ours
  el.append(host);
  const shadow = host.attachShadow({ mode: "open" });
  const root = h("section", { class: "card", "aria-label": label });
  shadow.append(h("style", {}, style), root);
  // Also for front ends that know no such attribute; copying and tabbing stay with the page.
  host.addEventListener("keydown", (event) => event.stopPropagation());
  const follow = () => set(root, "data-theme", isDark(el) ? "dark" : "light");
  follow();
  requestAnimationFrame(follow); // widgets are rendered before they are attached to the page
  const observer = new MutationObserver(follow);
  for (const node of [document.documentElement, document.body]) observer.observe(node, { attributes: true });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", follow);
  const close = () => {
    observer.disconnect();
    scheme.removeEventListener("change", follow);
  };
  return { root, close };
}

/** Whether the page behind an element is dark: its nearest opaque background decides, else the canvas. */
function isDark(el) {
  for (let node = el; node; node = node.parentElement) {
    const [red, green, blue, alpha = 1] = getComputedStyle(node)
      .backgroundColor.match(/[\d.]+/g)
      ?.map(Number) ?? [0, 0, 0, 0];
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
  }
  const canvas = getComputedStyle(document.documentElement).colorScheme;
  return canvas.includes("dark") && (!canvas.includes("light") || matchMedia("(prefers-color-scheme: dark)").matches);
}

/** Call draw(width) now and whenever the width of the node changes; returns the function that stops it. */
export function onWidth(node, draw) {
  let last = 0;
  const measure = () => {
    const width = Math.floor(node.clientWidth);
    if (width > 0 && width !== last) draw((last = width));
  };
  measure();
  const observer = new ResizeObserver(measure);
  observer.observe(node);
  return () => observer.disconnect();
}

/** Write traits back. A kernel that is busy or gone must not stop the page, so its errors end here. */
export function save(model, traits) {
  try {
    for (const [name, value] of Object.entries(traits)) model.set(name, value);
    model.save_changes();
  } catch (error) {
    console.info("ampedu: the kernel did not take the new state; the explorer goes on without it.", error);
  }
}

/** Call react() when Python changes one of the traits; returns the function that stops it. */
export function onTraits(model, names, react) {
  for (const name of names) model.on(`change:${name}`, react);
  return () => names.forEach((name) => model.off?.(`change:${name}`, react));
}
