package schematics

import "fmt"

// Outdated lists the extensions of e that a factory with that list would build from
// another digest, sorted by name. Factories have no explicit ones.
func (e Locked) Outdated(served []OfficialExtension) []Warning {
	have := index(served)
	var list []Warning
	for _, x := range e.Extensions {
		if got := have[x.Official()].Digest; !x.Explicit && got != x.Digest {
			list = append(list, differs("extension", x.Official(), x.Digest, got))
		}
	}
	return list
}

// OutdatedOverlay is Outdated for the overlay.
func (e Locked) OutdatedOverlay(served []OfficialOverlay) []Warning {
	if e.Overlay == nil {
		return nil
	}
	got, _ := overlayNamed(served, e.Overlay.Name)
	if got.Digest == e.Overlay.Digest {
		return nil
	}
	return []Warning{differs("overlay", e.Overlay.Name, e.Overlay.Digest, got.Digest)}
}

// differs warns that a factory would build something other than the lock says.
func differs(what, subject, locked, served string) Warning {
	w := Warning{
		Kind: FactoryDiffers, Subject: subject, Locked: locked, Found: served,
		Text: fmt.Sprintf("the factory would build %s %s with %s, but the lock says %s", what, subject, served, locked),
		Hint: "the factory keeps its list until it restarts: restart it or wait; if it is ahead, run `recast lock --update`",
	}
	if served == "" {
		w.Text = fmt.Sprintf("the factory does not have %s %s, locked at %s", what, subject, locked)
	}
	return w
}

// outdatedWithHints is Outdated with hints from the registry's list.
func (e Locked) outdatedWithHints(served []OfficialExtension, official map[string]OfficialExtension) []Warning {
	list := e.Outdated(served)
	for i, w := range list {
		switch official[w.Subject].Digest {
		case w.Found:
			list[i].Hint = "it was republished, and the registry has it too: run `recast lock --update`"
		case w.Locked:
			list[i].Hint = "the factory keeps its list until it restarts: restart it or wait; `recast publish --only build` refuses until then"
		}
	}
	return list
}
