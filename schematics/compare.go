package schematics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Change is a schematic whose image changes with the new lock. Nodes that run the old image are stale.
type Change struct {
	Schematic string   `json:"schematic"`
	OldBuild  string   `json:"oldBuild"` // "": the schematic is new
	NewBuild  string   `json:"newBuild"` // "": it was removed
	Moved     []Moved  `json:"moved"`
	Reasons   []string `json:"reasons"` // for people, one line each; includes Moved
}

// Moved is an extension with another pin. Old is zero for an added extension, New for a removed one.
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
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(before.Names(), after.Names()))))
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

// Matches returns how the lock differs from the current configuration. A lock of other files, or of another Talos
// version or platform, must not be built or rolled out.
func (l Lock) Matches(req Request) error {
	var errs []error
	differ := func(what, locked, configured string) {
		if locked != configured {
			errs = append(errs, fmt.Errorf("%s: recast.lock has %q, the configuration %q", what, locked, configured))
		}
	}
	differ("Talos version", l.Talos, req.Talos)
	differ("architecture", l.Arch, req.Arch)
	differ("platform", l.Platform, req.Platform)
	if l.SecureBoot != req.SecureBoot {
		errs = append(errs, errors.New("secure boot: recast.lock and the configuration differ"))
	}
	parsed, err := parseAll(req.Files)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		e, ok := l.Schematics[name]
		if !ok {
			errs = append(errs, fmt.Errorf("schematic %s is not in recast.lock", name))
			continue
		}
		if userPart(e) != parsed[name].Canonical() || !e.hasExplicit(req.Files[name].Extensions) {
			errs = append(errs, fmt.Errorf("schematic %s has changed since it was locked", name))
		}
	}
	for _, name := range l.Names() {
		if _, ok := parsed[name]; !ok {
			errs = append(errs, fmt.Errorf("schematic %s is in recast.lock, but not in the configuration", name))
		}
	}
	return errors.Join(errs...)
}

// hasExplicit reports whether the entry's explicit extensions are the wanted ones, in the same order.
func (e Locked) hasExplicit(wanted []Explicit) bool {
	var locked []Extension
	for _, x := range e.Extensions {
		if x.Explicit {
			locked = append(locked, x)
		}
	}
	return slices.EqualFunc(locked, wanted, func(x Extension, w Explicit) bool {
		return x.Ref == w.Repository && x.Tag == w.Tag && (w.Digest == "" || x.Digest == w.Digest)
	})
}

// CheckFactory refuses a factory that would build something other than the lock says, under the lock's name. The
// error is of kind Refused and lists all differences.
func (l Lock) CheckFactory(ctx context.Context, name string, f Factory) error {
	e := l.Schematics[name]
	extensions, err := f.Extensions(ctx, l.Talos)
	if err != nil {
		return fmt.Errorf("list the factory's extensions for Talos %s: %w", l.Talos, err)
	}
	differs := e.Outdated(extensions)
	if e.Overlay != nil {
		overlays, err := f.Overlays(ctx, l.Talos)
		if err != nil {
			return fmt.Errorf("list the factory's overlays for Talos %s: %w", l.Talos, err)
		}
		differs = append(differs, e.OutdatedOverlay(overlays)...)
	}
	var errs []error
	for _, w := range differs {
		errs = append(errs, fault.WithHint(errors.New(w.String()), "%s", w.Hint))
	}
	if l.SecureBoot {
		certificate, err := f.SecureBootCertificate(ctx)
		if err != nil {
			return fmt.Errorf("ask for the factory's Secure Boot certificate: %w", err)
		}
		errs = append(errs, l.checkSecureBoot(certificate))
	}
	return fault.BuildFailed.Of(fault.As(fault.Refused, errors.Join(errs...)))
}

// CheckRegistered compares the schematic that a factory registered with the locked one: id is the factory's ID, text
// the factory's canonical form. Another ID is an error of kind Refused: what the factory would build is not what the
// lock describes.
func (e Locked) CheckRegistered(name, id, text string) error {
	if id == e.SchematicID {
		return nil
	}
	err := fmt.Errorf("the factory gives schematic %s the ID %s, but the lock has %s", name, id, e.SchematicID)
	line, theirs, ours := firstDifference(text, e.Schematic)
	if line == 0 {
		return fault.WithHint(fault.BuildFailed.Refusedf("%w, for the same text", err),
			"an ID is the SHA-256 of the canonical text: the server is not an Image Factory, or changes what it receives")
	}
	err = fault.BuildFailed.Refusedf("%w: line %d of its canonical text is %q, of ours %q", err, line, theirs, ours)
	if unquoted(theirs) == unquoted(ours) {
		return fault.WithHint(err, "both say the same, but the factory's YAML library quotes differently, as some of its versions do "+
			"with strings such as yes, no, on, off: remove such a string from %s, or use a factory of another version", e.File)
	}
	return fault.WithHint(err, "the factory understands the schematic differently than this recast: "+
		"one of them is too old for what line %d says", line)
}

// firstDifference returns the first line, counted from 1, that differs; 0 if none does.
func firstDifference(a, b string) (line int, inA, inB string) {
	for restA, restB := a, b; restA != "" || restB != ""; {
		ended := restA == "" || restB == ""
		inA, restA, _ = strings.Cut(restA, "\n")
		inB, restB, _ = strings.Cut(restB, "\n")
		if line++; ended || inA != inB {
			return line, inA, inB
		}
	}
	return 0, "", ""
}

// unquoted returns a line of YAML without quotes.
func unquoted(line string) string { return strings.NewReplacer(`"`, "", "'", "").Replace(line) }

// Outdated lists the extensions of e that a factory with the list served would build from another digest, sorted by
// name. It leaves out explicit extensions, which factories do not have.
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

// OutdatedOverlay does the same as Outdated for the overlay.
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

// outdatedWithHints returns the warnings of Outdated with hints from the registry's list.
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
