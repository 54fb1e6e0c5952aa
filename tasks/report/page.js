"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const shown = JSON.parse(at("samples").textContent);
  at("special").disabled = shown.every((version) => version.no_special_tokens !== null);
  const groups = shown.flatMap((version) =>
    version.groups.map((group) => ({ ...group, version: version.name })));
  const versions = new Set(groups.map((group) => group.version));
  const PASS_REWARD = 1;
  const AT_ONCE = 100;
  const plain = (pieces) => pieces.filter((piece) => typeof piece === "string").join("");
  for (const group of groups) {
    group.words = `${group.id}\n${plain(group.prompt)}`.toLowerCase();
    for (const answer of group.answers) {
      answer.words = `${plain(answer.text)}\n${answer.why ?? ""}`.toLowerCase();
    }
  }

  // Every text goes through textContent: nothing that an answer holds is ever read as markup.
  const make = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const number = (value) => (value === null ? "–" : String(Math.round(value * 1e4) / 1e4));
  const textBlock = (pieces) => {
    const block = make("div", "text-block");
    for (const piece of pieces) {
      if (typeof piece === "number") {
        block.append(make("span", "gap", ` […${piece.toLocaleString("en")} characters are not in this page…] `));
      } else if (typeof piece === "string") {
        block.append(piece);
      } else {
        block.append(make("span", "special", piece[0]));
      }
    }
    return block;
  };

  const isStatus = (answer, status) => {
    switch (status) {
      case "": return true;
      case "pass": return answer.reward !== null && answer.reward >= PASS_REWARD;
      case "fail": return answer.reward !== null && answer.reward < PASS_REWARD;
      case "stop": case "length": case "error": return answer.finish === status;
      default: return answer.status === status;
    }
  };
  const limit = (id) => (at(id).value === "" ? null : Number(at(id).value));
  const filters = () => ({
    search: at("search").value.trim().toLowerCase(),
    status: at("status").value,
    version: at("version")?.value ?? "",
    least: limit("least"),
    most: limit("most"),
  });
  const matches = (group, answer, wanted) =>
    isStatus(answer, wanted.status) &&
    (wanted.least === null || (answer.reward !== null && answer.reward >= wanted.least)) &&
    (wanted.most === null || (answer.reward !== null && answer.reward <= wanted.most)) &&
    (wanted.search === "" || group.words.includes(wanted.search) || answer.words.includes(wanted.search));

  let found = [];
  let listed = 0;
  let current = null;

  const select = (group) => {
    current = group;
    for (const button of at("prompts").querySelectorAll("button")) {
      button.setAttribute("aria-current", String(found[Number(button.dataset.place)]?.group === group));
    }
    showGroup(group);
  };

  const listMore = () => {
    for (const { group, hits } of found.slice(listed, listed + AT_ONCE)) {
      const button = make("button");
      button.type = "button";
      button.dataset.place = String(listed);
      button.append(make("span", "snippet", group.name));
      const tag = versions.size > 1 ? `${group.version} · ` : "";
      button.append(make("span", "rate-line", `${tag}${group.passed}/${group.scored} pass · ${hits.size} of ${group.answers.length} match`));
      button.addEventListener("click", () => select(group));
      const item = make("li");
      item.append(button);
      at("prompts").append(item);
      listed += 1;
    }
    at("more").hidden = listed >= found.length;
    at("more").textContent = `show more (${found.length - listed} left)`;
  };

  const apply = () => {
    const wanted = filters();
    found = [];
    let answers = 0;
    for (const group of groups) {
      if (wanted.version !== "" && group.version !== wanted.version) continue;
      const hits = new Set(group.answers.filter((answer) => matches(group, answer, wanted)));
      if (hits.size > 0) found.push({ group, hits });
      answers += hits.size;
    }
    at("found").textContent = `${found.length} of ${groups.length} prompts, ${answers} answers match`;
    at("prompts").replaceChildren();
    listed = 0;
    listMore();
    select(found.some((entry) => entry.group === current) ? current : found[0]?.group ?? null);
  };

  const answerBlock = (answer, rank, isHit) => {
    const kind = answer.reward === null ? "failed" : answer.reward >= PASS_REWARD ? "passes" : "";
    const block = make("article", `panel answer ${kind}${isHit ? "" : " other"}`);
    const line = make("div", "answer-line");
    const reward = answer.reward === null ? `no reward: ${answer.status}` : `reward ${number(answer.reward)}`;
    line.append(make("strong", "", `${rank}. ${reward}`));
    const facts = [`sample ${answer.sample}`, answer.finish, `${answer.tokens} tokens`, `log-probability ${number(answer.logprob)}`];
    if (answer.parts.length > 1) facts.push(...answer.parts.map(([name, value]) => `${name} ${number(value)}`));
    for (const fact of facts) line.append(make("span", "", fact));
    block.append(line);
    if (answer.why) block.append(make("p", "why", answer.why));
    block.append(textBlock(answer.text));
    return block;
  };

  const showGroup = (group) => {
    at("prompt").replaceChildren();
    at("answers").replaceChildren();
    if (group === null) {
      at("prompt").append(make("p", "empty", "Nothing matches."));
      return;
    }
    const hits = found.find((entry) => entry.group === group)?.hits ?? new Set(group.answers);
    const tag = versions.size > 1 ? `${group.version}, ` : "";
    at("prompt").append(make("h3", "", `${tag}prompt ${group.id}`));
    at("prompt").append(make("div", "answer-line", `${group.passed} of ${group.scored} scored answers pass, mean reward ${number(group.mean)}`));
    at("prompt").append(textBlock(group.prompt));
    for (const other of groups) {
      if (other.id !== group.id || other === group) continue;
      const button = make("button", "link", `the same prompt in ${other.version === group.version ? other.run : other.version}`);
      button.type = "button";
      button.addEventListener("click", () => select(other));
      at("prompt").append(button);
    }
    const details = make("details");
    details.append(make("summary", "", "metadata"), textBlock(group.metadata));
    at("prompt").append(details);
    group.answers.forEach((answer, place) => at("answers").append(answerBlock(answer, place + 1, hits.has(answer))));
  };

  let waiting = 0;
  at("filters").addEventListener("input", (event) => {
    if (event.target.id === "special") {
      at("browser").classList.toggle("show-special", at("special").checked);
      return;
    }
    clearTimeout(waiting);
    waiting = setTimeout(apply, event.target.id === "search" ? 120 : 0);
  });
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("more").addEventListener("click", listMore);
  for (const button of document.querySelectorAll("button[data-prompt]")) {
    const group = groups.find((each) => each.id === button.dataset.prompt && each.run === button.dataset.run);
    button.disabled = group === undefined;
    button.addEventListener("click", () => {
      at("filters").reset();
      at("browser").classList.remove("show-special");
      current = group;
      apply();
      at("browser").scrollIntoView();
    });
  }

  const theme = at("theme");
  const isDark = () => {
    const set = document.documentElement.style.colorScheme;
    return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? "light" : "dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.style.colorScheme = isDark() ? "light" : "dark";
    nameTheme();
  });
  nameTheme();
  apply();
})();
