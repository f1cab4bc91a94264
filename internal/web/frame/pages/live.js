// Fetches this page again and takes over the parts that change. A part in which the
// keyboard's focus is stays as it is until the focus has left it.
"use strict";
const parts = () => [...document.querySelectorAll("[data-live]")];

const takeOver = async () => {
  const answer = await fetch(location.href, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of parts()) {
    const now = fresh.getElementById(old.id);
    if (!now) continue;
    old.dataset.live = now.dataset.live;
    if (old.innerHTML !== now.innerHTML && !old.contains(document.activeElement)) old.innerHTML = now.innerHTML;
  }
};

const again = () => setTimeout(async () => {
  try {
    if (!document.hidden) await takeOver();
    document.getElementById("gone").hidden = true;
  } catch {
    document.getElementById("gone").hidden = false;
  }
  again();
}, 1000 * Math.min(...parts().map((part) => Number(part.dataset.live))));

if (parts().length > 0) again();
