// Package schematics turns schematic files into a [Lock]: what every image of a cluster is made of, down to the
// digest of each extension. [Resolve] makes a lock, [ReadLock] reads one.
package schematics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/words"
)

// lockArg is the kernel argument that carries a lock hash. The kernel takes a name
// with a dot for a module's parameter and passes it to nothing.
const lockArg = "recast.lock="

// Schematic is the customization of an image, in the format of the Image Factory.
type Schematic struct {
	place     place
	doc       schematic.Schematic
	canonical string
}

// Parse reads a schematic as strictly as an Image Factory does. name is the file's name, for errors. Errors name the
// line of each problem and are of kind Config.
func Parse(name string, data []byte) (Schematic, error) {
	root, err := singleDocument(name, data)
	if err != nil {
		return Schematic{}, err
	}
	doc, err := schematic.Unmarshal(data)
	if err != nil {
		return Schematic{}, problems(name, err)
	}
	s := Schematic{place: place{file: name, root: root}, doc: *doc}
	if err := s.doc.Validate(false); err != nil {
		return Schematic{}, s.place.errorf([]any{"owner"}, "%w", err)
	}
	if s.canonical, err = canonical(s.doc); err != nil {
		return Schematic{}, fault.Configf("%s: %w", name, err)
	}
	return s, nil
}

// singleDocument returns the only document of a YAML file. An Image Factory reads the first document and silently
// drops the others.
func singleDocument(name string, data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	err := dec.Decode(&root)
	if errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0 {
		return nil, fault.WithHint(fault.Configf("%s: the file is empty", name),
			"an image without any customization is written \"customization: {}\"")
	}
	if err != nil {
		return nil, problems(name, err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fault.Configf("%s:%d: only one YAML document is allowed in this file", name, max(second.Line, root.Line))
	}
	return root.Content[0], nil
}

// canonical returns the text whose SHA-256 is the schematic ID. An Image Factory must read the same schematic back
// from the text, or the factory's ID would differ.
func canonical(doc schematic.Schematic) (string, error) {
	text, err := doc.Marshal()
	if err != nil {
		return "", fmt.Errorf("write the canonical form: %w", err)
	}
	again, err := schematic.Unmarshal(text)
	if err != nil {
		return "", fmt.Errorf("read the canonical form back: %w", err)
	}
	text2, err := again.Marshal()
	if err != nil {
		return "", fmt.Errorf("write the canonical form: %w", err)
	}
	if !bytes.Equal(text, text2) {
		return "", errors.New("some value changes when the file is written and read again; quote it")
	}
	return string(text), nil
}

// Canonical returns the schematic as an Image Factory stores it.
func (s Schematic) Canonical() string { return s.canonical }

// ID returns the ID that an Image Factory assigns to the schematic, if the factory writes YAML as we do.
func (s Schematic) ID() string { return idOf(s.canonical) }

// Extensions lists the official extensions by name, in the order of the file, which is their build order.
func (s Schematic) Extensions() []string {
	return slices.Clone(s.doc.Customization.SystemExtensions.OfficialExtensions)
}

// lockHash returns the value of the last kernel argument if that argument is recast's; otherwise "".
func (s Schematic) lockHash() string {
	args := s.doc.Customization.ExtraKernelArgs
	if len(args) == 0 {
		return ""
	}
	hash, _ := strings.CutPrefix(args[len(args)-1], lockArg)
	if hash == args[len(args)-1] {
		return ""
	}
	return hash
}

// withLock returns the schematic with the lock hash as its last kernel argument.
func (s Schematic) withLock(hash string) (Schematic, error) {
	args := s.doc.Customization.ExtraKernelArgs
	s.doc.Customization.ExtraKernelArgs = append(slices.Clone(args), lockArg+hash)
	var err error
	s.canonical, err = canonical(s.doc)
	return s, err
}

// withoutLock returns the canonical form without recast's own kernel argument: what the user wrote.
func (s Schematic) withoutLock() string {
	if s.lockHash() == "" {
		return s.canonical
	}
	args := s.doc.Customization.ExtraKernelArgs
	s.doc.Customization.ExtraKernelArgs = args[:len(args)-1]
	text, err := canonical(s.doc)
	if err != nil { // impossible: the longer schematic could be written
		return s.canonical
	}
	return text
}

// Secrets describes the secrets in the schematic: a machine configuration, or a way to get one. It quotes no secret.
func (s Schematic) Secrets() []string {
	var out []string
	if s.EmbedsConfig() {
		out = append(out, "the machine configuration that it embeds")
	}
	for _, arg := range s.doc.Customization.ExtraKernelArgs {
		for arg := range strings.FieldsSeq(arg) { // one entry may hold several arguments
			if _, name := redact.KernelArg(arg); name != "" {
				out = append(out, "the kernel argument "+name)
			}
		}
	}
	for _, m := range s.doc.Customization.Meta {
		if privateKey.MatchString(m.Value) {
			out = append(out, fmt.Sprintf("the META value %#x", m.Key))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var privateKey = regexp.MustCompile(`(?i)private_?key"?\s*:\s*"?[^"\s]`)

// HoldsSecrets reports whether one of the schematics has secrets. An unreadable schematic counts as having some.
func (l Lock) HoldsSecrets() bool {
	for _, e := range l.Schematics {
		if s, err := Parse(e.File, []byte(e.Schematic)); err != nil || len(s.Secrets()) > 0 {
			return true
		}
	}
	return false
}

// Unlocked reads the schematic that a running image states, without recast's
// additions: the file that would produce the image again.
func Unlocked(name string, data []byte) (Schematic, error) {
	s, err := Parse(name, data)
	if err != nil {
		return Schematic{}, err
	}
	return Parse(name, []byte(s.withoutLock()))
}

// EmbedsConfig reports whether the schematic's images embed a machine configuration.
func (s Schematic) EmbedsConfig() bool { return s.doc.Customization.EmbeddedMachineConfiguration != "" }

// Guess returns the schematic of an image that states none, from the extensions that the image's node lists. unknown
// are the listed extensions that match no official one.
func Guess(name string, listed []string, official []OfficialExtension) (s Schematic, unknown []string, err error) {
	var names []string
	for _, x := range listed {
		found := ""
		for _, o := range official {
			if path.Base(o.Name) == x {
				found = o.Name
			}
		}
		if found == "" {
			unknown = append(unknown, x)
			continue
		}
		names = append(names, found)
	}
	text := "customization: {}\n"
	if len(names) > 0 {
		text = fmt.Sprintf("customization:\n  systemExtensions:\n    officialExtensions:\n      - %s\n", strings.Join(names, "\n      - "))
	}
	s, err = Parse(name, []byte(text))
	return s, unknown, err
}

// place finds line and column of a key in a YAML file.
type place struct {
	file string
	root *yaml.Node
}

// errorf returns an error of kind Config that begins with the place of the value
// under path (string keys, int indexes), or of the nearest value above it.
func (p place) errorf(path []any, format string, args ...any) error {
	return fault.As(fault.Config, fmt.Errorf("%s: %w", p.at(path), fmt.Errorf(format, args...)))
}

// at returns the place of the value under path, or of the nearest value above it.
func (p place) at(path []any) string {
	n := p.root
	for _, elem := range path {
		next := child(n, elem)
		if next == nil {
			break
		}
		n = next
	}
	if n != nil && n.Line > 0 {
		return fmt.Sprintf("%s:%d:%d", p.file, n.Line, n.Column)
	}
	return p.file
}

func child(n *yaml.Node, elem any) *yaml.Node {
	if n == nil {
		return nil
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch e := elem.(type) {
	case string:
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == e {
				return n.Content[i+1]
			}
		}
	case int:
		if n.Kind == yaml.SequenceNode && e < len(n.Content) {
			return n.Content[e]
		}
	}
	return nil
}

// problems turns the YAML library's errors into one error of kind Config, with a line for each problem.
func problems(file string, err error) error {
	list, ok := errors.AsType[*yaml.LoadErrors](err)
	if !ok {
		one, ok := errors.AsType[*yaml.LoadError](err)
		if !ok {
			return fault.Configf("%s: %w", file, err)
		}
		list = &yaml.LoadErrors{Errors: []*yaml.LoadError{one}}
	}
	errs := make([]error, 0, len(list.Errors))
	for _, e := range list.Errors {
		errs = append(errs, fmt.Errorf("%s:%d:%d: %s", file, e.Mark.Line, e.Mark.Column, userMessage(e.Message)))
	}
	return fault.As(fault.Config, errors.Join(errs...))
}

// userMessage replaces Go's type names in a message of the YAML library.
func userMessage(message string) string {
	unknown := regexp.MustCompile(`^field (.*) not found in type \S+$`)
	if m := unknown.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("unknown key %q", m[1])
	}
	return strings.NewReplacer("!!seq into schematic.Schematic", "a list as a schematic", "schematic.", "").Replace(message)
}

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
