/** Elements from data: text only ever becomes text. */
export type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/** A group of buttons of which one is pressed; `label` is what it is called. */
export function choice<T extends string>(name: string, label: string, options: [T, string, string?][], chosen: (value: T) => void): { element: HTMLElement; set: (value: T, disabled?: T[], reason?: string) => void } {
  const buttons = options.map(([value, text, title]) => h("button", { type: "button", "data-value": value, title, click: () => chosen(value) }, text));
  const element = h("div", { class: "choice", role: "group", "aria-label": label, "data-control": name }, ...buttons);
  return {
    element,
    set: (value, disabled = [], reason = "") => {
      for (const [index, button] of buttons.entries()) {
        button.setAttribute("aria-pressed", String(button.dataset.value === value));
        button.disabled = disabled.includes(button.dataset.value as T);
        button.title = button.disabled && reason ? reason : (options[index][2] ?? "");
      }
    },
  };
}

export function field(text: string, ...controls: Child[]): HTMLElement {
  return h("label", { class: "field" }, h("span", {}, text), ...controls);
}

/** A list to choose from; it belongs into a `field`, whose text is its label. */
export function select(name: string, chosen: (value: string) => void): { element: HTMLSelectElement; set: (options: [string, string][], value: string) => void } {
  const element = h("select", { "data-control": name });
  element.addEventListener("change", () => chosen(element.value));
  let known = "";
  return {
    element,
    set: (options, value) => {
      const key = JSON.stringify(options);
      if (key !== known) element.replaceChildren(...options.map(([v, text]) => h("option", { value: v }, text)));
      known = key;
      element.value = value;
    },
  };
}
