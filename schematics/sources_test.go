package schematics

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// list is a list of official extensions of a registry or a factory.
type list []OfficialExtension

func (l list) Official(context.Context, string) ([]OfficialExtension, error) { return l, nil }

// with returns the list with another digest for one extension.
func (l list) with(name, digest string) list {
	var changed list
	for _, x := range l {
		if x.Name == name {
			x.Digest = digest
		}
		changed = append(changed, x)
	}
	return changed
}

func catalog() list {
	var l list
	for _, name := range []string{"i915", "iscsi-tools", "qemu-guest-agent", "util-linux-tools"} {
		l = append(l, OfficialExtension{
			Name: "siderolabs/" + name, Version: "1.0", Ref: "ghcr.io/siderolabs/" + name, Digest: digestOf(name),
		})
	}
	return l
}

// maker is a factory with its own lists.
type maker struct {
	extensions  list
	overlays    []OfficialOverlay
	broken      []string
	certificate []byte
	fail        error

	asked []string
}

func (m *maker) ask(what string) error {
	m.asked = append(m.asked, what)
	return m.fail
}

func (m *maker) Extensions(_ context.Context, talos string) ([]OfficialExtension, error) {
	if slices.Contains(m.broken, talos) {
		return nil, fault.Configf("404 version is not available")
	}
	return m.extensions, m.ask("extensions")
}

func (m *maker) Overlays(context.Context, string) ([]OfficialOverlay, error) {
	return m.overlays, m.ask("overlays")
}

func (m *maker) Broken(context.Context) ([]string, error) { return m.broken, m.ask("broken") }

func (m *maker) SecureBootCertificate(context.Context) ([]byte, error) {
	if m.certificate == nil {
		return nil, fault.Configf("secure boot is disabled")
	}
	return m.certificate, m.ask("certificate")
}

func certificate(text string) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)})
}

// shelf is a registry of extension images.
type shelf struct {
	tags   map[string]string         // digest by repository:tag
	images map[string]ExtensionImage // by repository@digest
	fail   error

	asked []string
}

// newShelf has the images of a list.
func newShelf(l list) *shelf {
	s := &shelf{tags: map[string]string{}, images: map[string]ExtensionImage{}}
	for _, x := range l {
		s.put(x.Ref, "", x.Digest, ExtensionImage{Architectures: []string{"amd64", "arm64"}, Name: path.Base(x.Name), Version: x.Version})
	}
	return s
}

// put stores an image and tags it.
func (s *shelf) put(repository, tag, digest string, image ExtensionImage) {
	s.images[repository+"@"+digest] = image
	if tag != "" {
		s.tags[repository+":"+tag] = digest
	}
}

func (s *shelf) Digest(_ context.Context, ref string) (string, bool, error) {
	s.asked = append(s.asked, ref)
	digest, ok := s.tags[ref]
	return digest, ok, s.fail
}

func (s *shelf) Describe(_ context.Context, ref, arch string) (ExtensionImage, error) {
	s.asked = append(s.asked, ref)
	image, ok := s.images[ref]
	if !ok && s.fail == nil {
		return ExtensionImage{}, fault.Configf("the registry has no %s", ref)
	}
	if !slices.Contains(image.Architectures, arch) {
		image.Name, image.Version = "", ""
	}
	return image, s.fail
}

var errAway = errors.New("away")

// nowhere is an unreachable catalog.
type nowhere struct{}

func (nowhere) Official(context.Context, string) ([]OfficialExtension, error) { return nil, errAway }

func TestBrokenVersion(t *testing.T) {
	t.Parallel()
	old := resolve(t, request(map[string]string{"a": agent}), catalog())
	earlier := old.Clone()
	earlier.Talos = "v1.13.8"
	const (
		refused = "recast.yaml:4:3: talos.version: Talos v1.13.9 is marked broken by the Image Factory, which does not build it"
		advice  = "choose another version: the release notes of Talos say which one fixes it"
	)
	warned := []Warning{{
		Kind: BrokenVersion, Subject: "v1.13.9", Text: "Talos v1.13.9, which is locked, was marked broken by the Image Factory: it no longer builds it",
		Hint: "what was built and published stays usable; " + advice,
	}}
	type row struct {
		broken string
		old    *Lock
		update bool
		imager bool
		err    string
		want   []Warning
	}
	must.Each(t, map[string]row{
		"another version is":     {broken: "v1.13.7"},
		"for a new lock":         {broken: "v1.13.9", err: refused},
		"for another version":    {broken: "v1.13.9", old: &earlier, err: refused},
		"locked already":         {broken: "v1.13.9", old: &old, want: warned},
		"locked already, update": {broken: "v1.13.9", old: &old, update: true, want: warned},
		"no factory builds":      {broken: "v1.13.9", imager: true},
	}, func(t *testing.T, tc row) {
		req := request(map[string]string{"a": agent})
		req.TalosPlace, req.Old, req.Update = "recast.yaml:4:3: talos.version", tc.old, tc.update
		req.Files["a"] = File{Path: "a.yaml", Data: []byte(agent), Imager: tc.imager}
		factory := &maker{extensions: catalog(), broken: []string{tc.broken}}
		l, got, err := Resolve(t.Context(), req, Sources{Catalog: catalog(), Images: newShelf(catalog()), Factory: factory})
		if l.Broken != (tc.want != nil) { // for plans, which ask no factory
			t.Errorf("the lock says %t", l.Broken)
		}
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || err.Error() != tc.err || fault.KindOf(err) != fault.Config || !slices.Equal(fault.Hints(err), []string{advice})) {
			t.Fatalf("error %v (%s), want %q", err, fault.Hints(err), tc.err)
		}
		must.Equal(t, "warnings", tc.want, got)
		if tc.imager && len(factory.asked) > 0 {
			t.Errorf("a factory that builds nothing was asked for %v", factory.asked)
		}
	})
}

// TestSecureBoot: the certificate is part of the build, and changes only with an update.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	lock := func(cert string, old *Lock, update bool) (Lock, []Warning) {
		req := request(map[string]string{"a": agent})
		req.SecureBoot, req.Old, req.Update = true, old, update
		factory := &maker{extensions: catalog(), certificate: certificate(cert)}
		l, warnings, err := Resolve(t.Context(), req, Sources{Catalog: catalog(), Images: newShelf(catalog()), Factory: factory})
		must.Do(t, err)
		return l, warnings
	}
	one, warnings := lock("one", nil, false)
	if one.SecureBootKey != sum("one") || len(warnings) > 0 {
		t.Errorf("key %s, warnings %v", one.SecureBootKey, warnings)
	}
	kept, warnings := lock("two", &one, false)
	must.Equal(t, "the lock moved without an update", one, kept)
	const hint = "machines that have enrolled only the locked certificate do not boot what the other one signed: make sure that they know the new one, then run `recast lock --update`"
	want := []Warning{{
		Kind: SecureBootKeyDiffers, Subject: "Secure Boot", Locked: sum("one"), Found: sum("two"),
		Text: "the factory signs for Secure Boot with certificate " + sum("two") + " now, but the lock has " + sum("one"), Hint: hint,
	}}
	must.Equal(t, "warnings", want, warnings)
	moved, warnings := lock("two", &one, true)
	if moved.SecureBootKey != sum("two") || len(warnings) > 0 || moved.Schematics["a"].BuildID == one.Schematics["a"].BuildID {
		t.Errorf("after an update: key %s, warnings %v, same build %t", moved.SecureBootKey, warnings, moved.Schematics["a"].BuildID == one.Schematics["a"].BuildID)
	}
	changes := Compare(one, moved)
	if len(changes) != 1 || !slices.Equal(changes[0].Reasons, []string{"Secure Boot's certificate " + sum("one") + " → " + sum("two")}) {
		t.Errorf("changes: %+v", changes)
	}

	must.Do(t, one.checkSecureBoot(certificate("one")))
	err := one.checkSecureBoot(certificate("two"))
	if fault.KindOf(err) != fault.Refused || !slices.Equal(fault.Hints(err), []string{hint}) || !strings.Contains(err.Error(), sum("two")) {
		t.Errorf("another certificate: %v", err)
	}
	if err := one.checkSecureBoot([]byte("x")); err == nil {
		t.Error("a missing certificate counts as the locked one")
	}
	factory := &maker{extensions: catalog(), certificate: certificate("one")}
	must.Do(t, one.CheckFactory(t.Context(), "a", factory))
	factory.extensions, factory.certificate = catalog().with("siderolabs/qemu-guest-agent", digestOf("patched")), certificate("two")
	err = one.CheckFactory(t.Context(), "a", factory)
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), digestOf("patched")) || !strings.Contains(err.Error(), sum("two")) || len(fault.Hints(err)) != 2 {
		t.Errorf("a factory that differs in both: %v", err)
	}
}

func TestOverlay(t *testing.T) {
	t.Parallel()
	const sbc = "ghcr.io/siderolabs/sbc-raspberrypi"
	listed := func(digest string) []OfficialOverlay {
		return []OfficialOverlay{
			{Name: "rock5b", Image: "siderolabs/sbc-rockchip", Ref: "ghcr.io/siderolabs/sbc-rockchip", Digest: digestOf("rock")},
			{Name: "rpi_generic", Image: "siderolabs/sbc-raspberrypi", Ref: sbc, Digest: digest},
		}
	}
	try := func(text string, old *Lock, update bool, overlays []OfficialOverlay) (Lock, []Warning, error) {
		req := request(map[string]string{"a": text})
		req.Old, req.Update = old, update
		return Resolve(t.Context(), req, Sources{Catalog: catalog(), Images: newShelf(catalog()), Factory: &maker{extensions: catalog(), overlays: overlays}})
	}
	const text = "overlay: {name: rpi_generic, image: siderolabs/sbc-raspberrypi}\ncustomization: {}\n"
	one, two := digestOf("one"), digestOf("two")
	old, warnings, err := try(text, nil, false, listed(one))
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	e := old.Schematics["a"]
	must.Equal(t, "overlay", &Overlay{Name: "rpi_generic", Ref: sbc, Digest: one}, e.Overlay)
	must.Equal(t, "lock hash", "sha256-"+sum("overlay rpi_generic "+one), e.LockHash)
	text2 := must.Get(formatLock(old))(t)
	if _, err := ParseLock("recast.lock", text2); err != nil {
		t.Errorf("read back: %v", err)
	}

	kept, warnings, err := try(text, &old, false, listed(two))
	if diff := cmp.Diff(old, kept); err != nil || diff != "" {
		t.Errorf("the lock moved without an update: %v\n%s", err, diff)
	}
	want := []Warning{{
		Kind: FactoryDiffers, Subject: "rpi_generic", Locked: one, Found: two, Text: "the factory would build overlay rpi_generic with " + two + ", but the lock says " + one,
		Hint: "the factory keeps its list until it restarts: restart it or wait; if it is ahead, run `recast lock --update`",
	}}
	must.Equal(t, "warnings", want, warnings)
	for digest, kind := range map[string]fault.Kind{one: fault.Failed, two: fault.Refused} {
		err := old.CheckFactory(t.Context(), "a", &maker{overlays: listed(digest)})
		if (err != nil) != (digest == two) || fault.KindOf(err) != kind {
			t.Errorf("a factory with overlay %s: %v", digest, err)
		}
	}
	updated, warnings, err := try(text, &old, true, listed(two))
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	changes := Compare(old, updated)
	if len(changes) != 1 || !slices.Equal(changes[0].Reasons, []string{"overlay rpi_generic " + one + " → rpi_generic " + two}) {
		t.Errorf("changes: %+v", changes)
	}

	for name, tc := range map[string]struct{ text, err, hint string }{
		"misspelt":        {"overlay: {name: rpi_genric}\ncustomization: {}\n", `a.yaml:1:17: no official overlay "rpi_genric" for Talos v1.13.9`, `did you mean "rpi_generic"?`},
		"like nothing":    {"overlay: {name: turing}\ncustomization: {}\n", `a.yaml:1:17: no official overlay "turing" for Talos v1.13.9`, `the names are those of the Image Factory, such as "rpi_generic"`},
		"another's image": {"overlay: {name: rpi_generic, image: acme/pi}\ncustomization: {}\n", `a.yaml:1:37: overlay "rpi_generic" is in "siderolabs/sbc-raspberrypi", not in "acme/pi"`, ""},
	} {
		_, _, err := try(tc.text, nil, false, listed(one))
		if err == nil || err.Error() != tc.err || strings.Join(fault.Hints(err), "; ") != tc.hint {
			t.Errorf("%s: %v (%q), want %s (%q)", name, err, fault.Hints(err), tc.err, tc.hint)
		}
	}
	_, _, err = try(text, nil, false, listed("latest"))
	if want := `a.yaml:1:17: overlay "rpi_generic" has no digest in the factory's list, but "latest"`; err == nil || err.Error() != want {
		t.Errorf("no digest: %v, want %s", err, want)
	}
}

// TestRenamed: an old name is resolved to the new one, which nodes list.
func TestRenamed(t *testing.T) {
	t.Parallel()
	const name = "siderolabs/nvidia-fabricmanager"
	known := list{{Name: "siderolabs/nvidia-fabric-manager-lts", Version: "1", Ref: "ghcr.io/siderolabs/nvidia-fabric-manager-lts", Digest: digestOf("nvidia")}}
	images := newShelf(nil)
	images.put(known[0].Ref, "", known[0].Digest, ExtensionImage{Architectures: []string{"amd64"}, Name: "nvidia-fabricmanager-lts", Version: "535.1"})
	req := request(map[string]string{"a": strings.Replace(agent, "siderolabs/qemu-guest-agent", name, 1)})
	l, warnings, err := Resolve(t.Context(), req, Sources{Catalog: known, Images: images})
	must.Do(t, err)
	e := l.Schematics["a"]
	want := []Extension{{Name: "nvidia-fabricmanager-lts", Version: "535.1", Ref: known[0].Ref, Digest: known[0].Digest}}
	must.Equal(t, "extensions", want, e.Extensions)
	wantWarnings := []Warning{{
		Kind: Renamed, Subject: name,
		Text: `a.yaml:1:57: extension "siderolabs/nvidia-fabricmanager" is now called "siderolabs/nvidia-fabric-manager-lts": nodes list it as "nvidia-fabricmanager-lts"`,
		Hint: `the old name works as long as factories know it; to write "siderolabs/nvidia-fabric-manager-lts" changes the schematic, and so rolls its nodes`,
	}}
	must.Equal(t, "warnings", wantWarnings, warnings)
	order, err := e.BuildOrder()
	if diff := cmp.Diff(want, order); diff != "" || err != nil {
		t.Errorf("build order (-want +got):\n%s%v", diff, err)
	}
	req.Arch = "arm64"
	_, _, err = Resolve(t.Context(), req, Sources{Catalog: known, Images: images})
	wrong := `a.yaml:1:57: extension "siderolabs/nvidia-fabricmanager": ghcr.io/siderolabs/nvidia-fabric-manager-lts@` + digestOf("nvidia") + " does not exist for arm64, only for amd64"
	must.Equal(t, "an architecture without an image", wrong, fmt.Sprint(err))
	must.Equal(t, "kind of the error", fault.Config, fault.KindOf(err))
}
