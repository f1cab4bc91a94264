package schematics

import (
	"fmt"
	"maps"
	"slices"

	"github.com/recast-sh/recast/internal/words"
)

// Change is a schematic whose image changes with the new lock; nodes that run the
// old one are stale.
type Change struct {
	Schematic string   `json:"schematic"`
	OldBuild  string   `json:"oldBuild"` // "": the schematic is new
	NewBuild  string   `json:"newBuild"` // "": it was removed
	Moved     []Moved  `json:"moved"`
	Reasons   []string `json:"reasons"` // for people, one line each; includes Moved
}

// Moved is an extension with another pin. Old is the zero value for one that was
// added, New for one that was removed.
type Moved struct {
	Old Extension `json:"old"`
	New Extension `json:"new"`
}

func (m Moved) String() string {
	switch {
	case m.Old == Extension{}:
		return fmt.Sprintf("extension %s %s added: %s", m.New.Name, m.New.Version, m.New.Digest)
	case m.New == Extension{}:
		return fmt.Sprintf("extension %s %s removed", m.Old.Name, m.Old.Version)
	case m.Old.Ref != m.New.Ref:
		return fmt.Sprintf("extension %s: %s %s@%s → %s %s@%s", m.New.Name, m.Old.Version, m.Old.Ref, m.Old.Digest, m.New.Version, m.New.Ref, m.New.Digest)
	case m.Old.Version != m.New.Version:
		return fmt.Sprintf("extension %s %s → %s: %s → %s", m.New.Name, m.Old.Version, m.New.Version, m.Old.Digest, m.New.Digest)
	default:
		return fmt.Sprintf("extension %s %s: %s → %s", m.New.Name, m.New.Version, m.Old.Digest, m.New.Digest)
	}
}

// Compare lists the schematics whose build differs between two locks, sorted by name.
func Compare(before, after Lock) []Change {
	names := slices.Compact(slices.Sorted(func(yield func(string) bool) {
		for _, l := range []Lock{before, after} {
			for name := range maps.Keys(l.Schematics) {
				if !yield(name) {
					return
				}
			}
		}
	}))
	var changes []Change
	for _, name := range names {
		was, is := before.Schematics[name], after.Schematics[name]
		if was.BuildID == is.BuildID {
			continue
		}
		c := Change{Schematic: name, OldBuild: was.BuildID, NewBuild: is.BuildID, Moved: []Moved{}}
		switch {
		case was.BuildID == "":
			c.Reasons = []string{"added"}
		case is.BuildID == "":
			c.Reasons = []string{"removed"}
		default:
			c.Moved = moved(was.Extensions, is.Extensions)
			c.Reasons = reasons(before, after, was, is, c.Moved)
		}
		changes = append(changes, c)
	}
	return changes
}

func reasons(before, after Lock, was, is Locked, moved []Moved) []string {
	var list []string
	for _, v := range []struct{ what, was, is string }{
		{"Talos", before.Talos, after.Talos},
		{"architecture", before.Arch, after.Arch},
		{"platform", before.Platform, after.Platform},
		{"Secure Boot", fmt.Sprint(before.SecureBoot), fmt.Sprint(after.SecureBoot)},
		{"Secure Boot's certificate", words.OrNone(before.SecureBootKey), words.OrNone(after.SecureBootKey)},
		{"overlay", was.Overlay.String(), is.Overlay.String()},
		{"rebuild", fmt.Sprint(was.Rebuild), fmt.Sprint(is.Rebuild)},
	} {
		if v.was != v.is {
			list = append(list, fmt.Sprintf("%s %s → %s", v.what, v.was, v.is))
		}
	}
	for _, m := range moved {
		list = append(list, m.String())
	}
	if userPart(was) != userPart(is) {
		list = append(list, is.File+" changed")
	}
	if len(list) == 0 {
		list = append(list, "its own extensions are in another order")
	}
	return list
}

func (o *Overlay) String() string {
	if o == nil {
		return words.OrNone("")
	}
	return o.Name + " " + o.Digest
}

func userPart(e Locked) string {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil { // impossible for a lock that was resolved or read
		return e.Schematic
	}
	return s.withoutLock()
}

func moved(was, is []Extension) []Moved {
	byName := map[string]Moved{}
	for _, x := range was {
		byName[x.Name] = Moved{Old: x}
	}
	for _, x := range is {
		byName[x.Name] = Moved{Old: byName[x.Name].Old, New: x}
	}
	list := []Moved{}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if m := byName[name]; m.Old.Digest != m.New.Digest || m.Old.Version != m.New.Version || m.Old.Ref != m.New.Ref {
			list = append(list, m)
		}
	}
	return list
}
