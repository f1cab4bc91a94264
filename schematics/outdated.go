package schematics

import (
	"fmt"
	"slices"
)

// Warning says that a factory would build another extension than the lock names.
type Warning struct {
	Extension string `json:"extension"` // "siderolabs/qemu-guest-agent"
	Locked    string `json:"locked"`    // digest
	Served    string `json:"served"`    // digest in the factory's list; "" if it lacks the extension
	Hint      string `json:"hint"`
}

func (w Warning) String() string {
	if w.Served == "" {
		return fmt.Sprintf("the factory does not have extension %s, locked at %s", w.Extension, w.Locked)
	}
	return fmt.Sprintf("the factory would build extension %s with %s, but the lock says %s", w.Extension, w.Served, w.Locked)
}

// Outdated lists the extensions of e that a factory with that list would build
// from another digest, sorted by name.
func (e Locked) Outdated(served []OfficialExtension) []Warning {
	have := index(served)
	var list []Warning
	for _, x := range e.Extensions {
		if got := have[x.Official()].Digest; got != x.Digest {
			list = append(list, Warning{
				Extension: x.Official(), Locked: x.Digest, Served: got,
				Hint: "the factory keeps its list until it restarts: restart it or wait; if it is ahead, run `recast lock --update`",
			})
		}
	}
	return list
}

func warnings(l Lock, served []OfficialExtension, official map[string]OfficialExtension) []Warning {
	var list []Warning
	for _, name := range l.Names() {
		for _, w := range l.Schematics[name].Outdated(served) {
			switch official[w.Extension].Digest {
			case w.Served:
				w.Hint = "the registry has it too: run `recast lock --update`"
			case w.Locked:
				w.Hint = "the factory keeps its list until it restarts: restart it or wait; `recast build` refuses until then"
			}
			if !slices.Contains(list, w) {
				list = append(list, w)
			}
		}
	}
	return list
}
