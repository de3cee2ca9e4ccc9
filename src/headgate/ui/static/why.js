// The diagnosis of the job: cause, location, evidence and one thing to try.

import { announce, byId, clock, h, setText } from "./format.js";

const CAUSES = {
    none: "No bottleneck",
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
    #note;
    #ask;
    #select;
    #shown = null;
    #box;
    #places = null; // null: the job has no view yet, and cannot be diagnosed
    #asking = false;

    /** `ask` returns {promise, seconds}; null: this is a report. */
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
        this.#note = h("span", { class: "muted" });
        setText(
            this.#note,
            ask === null
                ? "There is no diagnosis of this job."
                : "From the last seconds, and from sampled stacks if needed.",
        );
        byId("why-head").append(h("div", { class: "tools" }, this.#note, this.#progress, this.#button));
        this.#box = parent;
        parent.append(this.#body);
        parent.hidden = true;
    }

    /** Remove the diagnosis: another job is shown. */
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
        setText(this.#note, diagnosis.at_ms > 0 ? `Answer of ${clock(diagnosis.at_ms)}.` : "");
        setText(this.#button, "Ask again");
    }

    /** Remove the button: the job is over. */
    close() {
        this.#button.hidden = true;
        if (this.#shown === null) setText(this.#note, "There is no diagnosis of this job.");
    }

    async #find() {
        const { promise, seconds } = this.#ask();
        const began = performance.now();
        this.#button.disabled = this.#asking = true;
        this.#progress.hidden = false;
        setText(this.#note, `This takes about ${Math.ceil(seconds)} s.`);
        const timer = setInterval(() => {
            this.#progress.value = Math.min(98, ((performance.now() - began) / (seconds * 1000)) * 100);
        }, 200);
        try {
            const diagnosis = await promise;
            if (this.#places === null) return; // another job is shown by now
            this.#shown = null;
            this.update(diagnosis, this.#places);
            announce(`Why: ${diagnosis.summary}`);
        } catch (error) {
            setText(this.#note, `No answer: ${error.message}.`);
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
