// The answer to 'why is it not faster?': cause, place, evidence and one thing to try, as headgate found them.

import { announce, byId, clock, h, setText } from "./format.js";

const CAUSES = {
    none: "Nothing holds it back",
    cpu: "An operator's own work",
    waiting: "An operator waits in its code",
    "hot-key": "A hot key",
    skew: "Skew",
    buffers: "Too few buffers",
    network: "The network",
    sink: "The sink",
    source: "The source",
};

export class WhyPanel {
    #body;
    #button;
    #progress;
    #said;
    #ask;
    #select;
    #shown = null;
    #box;
    #places = null; // null: nothing is known of the job yet, so nothing can be asked
    #asking = false;

    /** `ask` answers with {promise, seconds}; null: this is a report. */
    constructor(parent, { ask, select }) {
        this.#ask = ask;
        this.#select = select;
        this.#body = h("div", { class: "answer" });
        this.#progress = h("progress", { max: 100, value: 0, "aria-label": "Finding out why", hidden: true });
        this.#button = h(
            "button",
            { type: "button", class: "primary", hidden: ask === null, disabled: true, onclick: () => this.#find() },
            "Find out why",
        );
        this.#said = h("span", { class: "muted" });
        setText(
            this.#said,
            ask === null
                ? "Nobody asked while the job ran."
                : "Looks at the last half minute, and at stacks where it must.",
        );
        byId("why-head").append(h("div", { class: "tools" }, this.#said, this.#progress, this.#button));
        this.#box = parent;
        parent.append(this.#body);
        parent.hidden = true;
    }

    /** Another job is shown. */
    clear() {
        this.#shown = this.#places = null;
        this.#body.replaceChildren();
        this.#box.hidden = true;
        this.#button.disabled = true;
        setText(this.#button, "Find out why");
    }

    update(diagnosis, graph) {
        this.#places = graph;
        this.#button.disabled = this.#asking;
        if (!diagnosis || (this.#shown !== null && diagnosis.at_ms <= this.#shown)) return;
        this.#shown = diagnosis.at_ms;
        this.#body.replaceChildren(...this.#answer(diagnosis));
        this.#box.hidden = false;
        setText(this.#said, diagnosis.at_ms > 0 ? `Answer of ${clock(diagnosis.at_ms)}.` : "");
        setText(this.#button, "Ask again");
    }

    /** The job is over: what is known is all that will be. */
    close() {
        this.#button.hidden = true;
        if (this.#shown === null) setText(this.#said, "Nobody asked while the job ran.");
    }

    async #find() {
        const { promise, seconds } = this.#ask();
        const began = performance.now();
        this.#button.disabled = this.#asking = true;
        this.#progress.hidden = false;
        setText(this.#said, `This takes about ${Math.ceil(seconds)} s.`);
        const timer = setInterval(() => {
            this.#progress.value = Math.min(98, ((performance.now() - began) / (seconds * 1000)) * 100);
        }, 200);
        try {
            const diagnosis = await promise;
            if (this.#places === null) return; // another job is about to be shown
            this.#shown = null;
            this.update(diagnosis, this.#places);
            announce(`Why: ${diagnosis.summary}`);
        } catch (error) {
            setText(this.#said, `No answer: ${error.message}.`);
        } finally {
            clearInterval(timer);
            this.#asking = false;
            this.#button.disabled = this.#places === null;
            this.#progress.hidden = true;
        }
    }

    #answer(diagnosis) {
        const what = [
            h("p", { class: "cause", "data-cause": diagnosis.cause }, CAUSES[diagnosis.cause] ?? diagnosis.cause),
            h("p", { class: "summary" }, diagnosis.summary),
        ];
        const facts = [];
        if (diagnosis.vertex !== null) facts.push(["Place", this.#place(diagnosis)]);
        if (diagnosis.exchange !== null) facts.push(["Edge", this.#edge(diagnosis.exchange)]);
        if (diagnosis.key !== null) facts.push(["Key", h("code", {}, diagnosis.key)]);
        if (diagnosis.function !== null) facts.push(["Function", h("code", {}, diagnosis.function)]);
        if (facts.length > 0) {
            what.push(
                h(
                    "dl",
                    { class: "facts" },
                    ...facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))),
                ),
            );
        }
        const parts = [h("div", {}, ...what)];
        if (diagnosis.evidence.length > 0) {
            parts.push(
                h(
                    "div",
                    {},
                    h("h3", {}, "Evidence"),
                    h("ul", {}, ...diagnosis.evidence.map((one) => h("li", {}, one))),
                ),
            );
        }
        if (diagnosis.advice)
            parts.push(h("div", {}, h("h3", {}, "Try"), h("p", { class: "advice" }, diagnosis.advice)));
        return parts;
    }

    #place(diagnosis) {
        const vertex = this.#places.vertices.find((one) => one.id === diagnosis.vertex);
        const where = diagnosis.operator || (vertex ? vertex.name : `vertex ${diagnosis.vertex}`);
        const text = diagnosis.subtask === null ? where : `${where}, subtask ${diagnosis.subtask}`;
        return h(
            "button",
            { type: "button", class: "link", onclick: () => this.#select({ kind: "vertex", id: diagnosis.vertex }) },
            text,
        );
    }

    #edge(id) {
        const edge = this.#places.edges.find((one) => one.id === id);
        const name = (vertex) => this.#places.vertices.find((one) => one.id === vertex)?.name ?? `vertex ${vertex}`;
        const text = edge ? `${name(edge.producer)} → ${name(edge.consumer)}` : `edge ${id}`;
        return h("button", { type: "button", class: "link", onclick: () => this.#select({ kind: "edge", id }) }, text);
    }
}
