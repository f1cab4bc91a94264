package schematics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	frr = "ghcr.io/acme/frr"
	bgp = "ghcr.io/acme/bgp"
)

func frrImage(version string) ExtensionImage {
	return ExtensionImage{Architectures: []string{"amd64", "arm64"}, Name: "frr", Version: version}
}

// own is a request for one schematic with extensions of its own.
func own(text string, extensions ...Explicit) Request {
	req := request(map[string]string{"a": text})
	for i := range extensions {
		extensions[i].Place = "recast.yaml:9:" + string(rune('1'+i))
	}
	req.Files["a"] = File{Path: "a.yaml", Data: []byte(text), Extensions: extensions, Imager: true}
	return req
}

// explicitCase is a reference and its expected result.
type explicitCase struct {
	shelf    []func(*shelf)
	wanted   Explicit
	old      *Explicit // what is locked, from a shelf with digest one
	update   bool
	want     Extension
	warnings []Warning
	asked    []string
}

// putFRR stores an image and tags it with its version.
func putFRR(version, digest string) func(*shelf) {
	return func(s *shelf) { s.put(frr, version, digest, frrImage(version)) }
}

func explicitCases() map[string]explicitCase {
	one, two := digestOf("one"), digestOf("two")
	extension := func(version, tag, digest string) Extension {
		return Extension{Name: "frr", Version: version, Ref: frr, Digest: digest, Explicit: true, Tag: tag}
	}
	moved := Warning{
		Kind: TagMoved, Subject: frr + ":1.7", Locked: one, Found: two,
		Text: "recast.yaml:9:1: " + frr + ":1.7 now names " + two + "; the build uses " + one + ", as given",
		Hint: "someone pushed other content under the same tag. To take it, write its digest; to keep the given one, remove the tag",
	}
	gone := Warning{
		Kind: TagMoved, Subject: frr + ":1.7", Locked: one,
		Text: "recast.yaml:9:1: " + frr + ":1.7: the registry no longer has this tag; the build uses " + one + ", as given",
		Hint: "registries delete what no tag names: keep a copy, or use an existing tag",
	}
	return map[string]explicitCase{
		"tag and digest": {
			shelf: []func(*shelf){putFRR("1.7", one)}, wanted: Explicit{Repository: frr, Tag: "1.7", Digest: one},
			want: extension("1.7", "1.7", one), asked: []string{frr + ":1.7", frr + "@" + one},
		},
		"a digest without a tag": {
			shelf: []func(*shelf){putFRR("1.7", one)}, wanted: Explicit{Repository: frr, Digest: one},
			want: extension("1.7", "", one), asked: []string{frr + "@" + one},
		},
		"a tag without a digest": {
			shelf: []func(*shelf){putFRR("1.7", one)}, wanted: Explicit{Repository: frr, Tag: "1.7"},
			want: extension("1.7", "1.7", one), asked: []string{frr + ":1.7", frr + "@" + one},
		},
		"the tag moved": {
			shelf: []func(*shelf){putFRR("1.7", one), putFRR("1.7", two)}, wanted: Explicit{Repository: frr, Tag: "1.7", Digest: one},
			want: extension("1.7", "1.7", one), warnings: []Warning{moved}, asked: []string{frr + ":1.7", frr + "@" + one},
		},
		"the tag is gone": {
			shelf:  []func(*shelf){putFRR("1.7", one), func(s *shelf) { delete(s.tags, frr+":1.7") }},
			wanted: Explicit{Repository: frr, Tag: "1.7", Digest: one},
			want:   extension("1.7", "1.7", one), warnings: []Warning{gone}, asked: []string{frr + ":1.7", frr + "@" + one},
		},
		"a tag that is locked": {
			shelf: []func(*shelf){putFRR("1.7", two)}, wanted: Explicit{Repository: frr, Tag: "1.7"}, old: &Explicit{Repository: frr, Tag: "1.7"},
			want: extension("1.7", "1.7", one),
		},
		"a locked tag, updated": {
			shelf: []func(*shelf){putFRR("1.7", two)}, wanted: Explicit{Repository: frr, Tag: "1.7"}, old: &Explicit{Repository: frr, Tag: "1.7"}, update: true,
			want: extension("1.7", "1.7", two), asked: []string{frr + ":1.7", frr + "@" + two},
		},
		"another tag than is locked": {
			shelf: []func(*shelf){putFRR("1.8", two)}, wanted: Explicit{Repository: frr, Tag: "1.8"}, old: &Explicit{Repository: frr, Tag: "1.7"},
			want: extension("1.8", "1.8", two), asked: []string{frr + ":1.8", frr + "@" + two},
		},
		"a digest that is locked": {
			shelf: []func(*shelf){}, wanted: Explicit{Repository: frr, Digest: one}, old: &Explicit{Repository: frr, Digest: one},
			want: extension("1.7", "", one),
		},
	}
}

func TestExplicit(t *testing.T) {
	t.Parallel()
	must.Each(t, explicitCases(), func(t *testing.T, tc explicitCase) {
		req := own("customization: {}\n", tc.wanted)
		if tc.old != nil {
			before := newShelf(nil)
			putFRR("1.7", digestOf("one"))(before)
			old, _, err := Resolve(t.Context(), own("customization: {}\n", *tc.old), Sources{Catalog: catalog(), Images: before})
			must.Do(t, err)
			req.Old, req.Update = &old, tc.update
		}
		images := newShelf(nil)
		for _, f := range tc.shelf {
			f(images)
		}
		got, warnings, err := Resolve(t.Context(), req, Sources{Catalog: catalog(), Images: images})
		must.Do(t, err)
		must.Equal(t, "extensions", []Extension{tc.want}, got.Schematics["a"].Extensions)
		must.Equal(t, "warnings", tc.warnings, warnings)
		must.Equal(t, "asked of the registry", tc.asked, images.asked)
		must.Do(t, got.Matches(req))
	})
}

func TestExplicitRefuses(t *testing.T) {
	t.Parallel()
	one := digestOf("one")
	pinned := Explicit{Repository: frr, Digest: one}
	named := func(x ExtensionImage) func(*shelf) { return func(s *shelf) { s.put(frr, "1.7", one, x) } }
	agentImage := frrImage("9")
	agentImage.Name = "qemu-guest-agent"
	type row struct {
		text  string
		shelf func(*shelf)
		want  []Explicit
		err   string
		hint  string
	}
	must.Each(t, map[string]row{
		"official": {
			"customization: {}\n", nil,
			[]Explicit{{Repository: "ghcr.io/siderolabs/i915", Tag: "1.0"}},
			`recast.yaml:9:1: ghcr.io/siderolabs/i915 is the official extension "siderolabs/i915"`, "name it in a.yaml instead: recast.lock pins its digest, too. Or give the digest that is to be built in: ghcr.io/siderolabs/i915@sha256:…",
		},
		"no such tag": {"customization: {}\n", nil, []Explicit{{Repository: frr, Tag: "1.7"}}, "recast.yaml:9:1: the registry has no " + frr + ":1.7", ""},
		"no such digest": {
			"customization: {}\n", nil, []Explicit{pinned}, "recast.yaml:9:1: the registry has no " + frr + "@" + one, "",
		},
		"another architecture": {
			"customization: {}\n", named(ExtensionImage{Architectures: []string{"arm64", "riscv64"}, Name: "frr", Version: "1"}),
			[]Explicit{pinned},
			"recast.yaml:9:1: " + frr + "@" + one + " does not exist for amd64, only for arm64, riscv64", "",
		},
		"no name": {
			"customization: {}\n", named(ExtensionImage{Architectures: []string{"amd64"}, Version: "1"}),
			[]Explicit{pinned},
			`recast.yaml:9:1: ` + frr + "@" + one + ` names itself "", version "1", in manifest.yaml: it needs both`, "",
		},
		"the name of an official one": {
			agent, named(agentImage),
			[]Explicit{pinned},
			"recast.yaml:9:1: " + frr + "@" + one + ` calls itself "qemu-guest-agent", as ghcr.io/siderolabs/qemu-guest-agent does: a node can't tell them apart`, "",
		},
		"twice the same name": {
			"customization: {}\n", func(s *shelf) { s.put(frr, "1.7", one, frrImage("1")); s.put(bgp, "2", one, frrImage("2")) },
			[]Explicit{pinned, {Repository: bgp, Tag: "2"}},
			"recast.yaml:9:2: " + bgp + `:2 calls itself "frr", as ` + frr + " does: a node can't tell them apart", "",
		},
		"an entry of Talos": {
			"customization: {}\n", named(ExtensionImage{Architectures: []string{"amd64"}, Name: "schematic", Version: "1"}),
			[]Explicit{pinned},
			"recast.yaml:9:1: " + frr + "@" + one + ` calls itself "schematic", which is one of Talos' own entries`, "",
		},
		"everything at once": {
			"customization: {systemExtensions: {officialExtensions: [zzz]}}\n", nil,
			[]Explicit{pinned, {Repository: bgp, Tag: "2"}},
			"a.yaml:1:57: no official extension \"zzz\" for Talos v1.13.9\nrecast.yaml:9:1: the registry has no " + frr + "@" + one + "\nrecast.yaml:9:2: the registry has no " + bgp + ":2",
			`the names are those of the Image Factory, such as "siderolabs/qemu-guest-agent"`,
		},
	}, func(t *testing.T, tc row) {
		images := newShelf(catalog())
		if tc.shelf != nil {
			tc.shelf(images)
		}
		_, _, err := Resolve(t.Context(), own(tc.text, tc.want...), Sources{Catalog: catalog(), Images: images})
		must.Equal(t, "error", tc.err, fmt.Sprint(err))
		must.Equal(t, "kind of the error", fault.Config, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
	images := newShelf(catalog())
	images.fail = errAway
	_, _, err := Resolve(t.Context(), own("customization: {}\n", Explicit{Repository: frr, Tag: "1"}), Sources{Catalog: catalog(), Images: images})
	if want := "recast.yaml:9:1: look up " + frr + ":1: away"; err == nil || err.Error() != want || fault.KindOf(err) == fault.Config {
		t.Errorf("an unavailable registry: %v, want %s", err, want)
	}
}

// TestExplicitInBuild: an explicit extension's digest and its place in the order are
// part of lock hash, schematic ID and build ID; its name is not.
func TestExplicitInBuild(t *testing.T) {
	t.Parallel()
	images := newShelf(catalog())
	images.put(frr, "1.7", digestOf("frr"), frrImage("1.7"))
	images.put(frr, "1.8", digestOf("frr 8"), frrImage("1.8"))
	other := frrImage("2")
	other.Name = "bgp"
	images.put(bgp, "2", digestOf("bgp"), other)
	lock := func(extensions ...Explicit) Lock {
		l, _, err := Resolve(t.Context(), own(agent, extensions...), Sources{Catalog: catalog(), Images: images})
		must.Do(t, err)
		if again, err := formatLock(l); err != nil {
			t.Error(err)
		} else if _, err := ParseLock("recast.lock", again); err != nil {
			t.Errorf("the lock can't be read back: %v", err)
		}
		return l
	}
	entry := func(extensions ...Explicit) Locked { return lock(extensions...).Schematics["a"] }
	a, b := Explicit{Repository: frr, Tag: "1.7"}, Explicit{Repository: bgp, Tag: "2"}
	base := entry(a, b)
	for name, tc := range map[string]struct {
		entry Locked
		same  bool
	}{
		"again":         {entry(a, b), true},
		"by digest":     {entry(Explicit{Repository: frr, Digest: digestOf("frr")}, b), true},
		"other order":   {entry(b, a), false},
		"one less":      {entry(a), false},
		"another patch": {entry(Explicit{Repository: frr, Tag: "1.8"}, b), false},
		"none":          {entry(), false},
	} {
		got := []bool{tc.entry.LockHash == base.LockHash, tc.entry.SchematicID == base.SchematicID, tc.entry.BuildID == base.BuildID}
		must.Equal(t, name+": lock hash, schematic ID and build ID are the same", []bool{tc.same, tc.same, tc.same}, got)
	}
	fork := frrImage("1.7")
	images.put("ghcr.io/fork/frr", "1.7", digestOf("fork"), fork)
	for _, tc := range []struct {
		lock   Lock
		reason string
	}{
		{lock(b, a), "its own extensions are in another order"},
		{lock(a), "extension bgp 2 removed"},
		{lock(Explicit{Repository: frr, Tag: "1.8"}, b), "extension frr 1.7 → 1.8: " + digestOf("frr") + " → " + digestOf("frr 8")},
		{
			lock(Explicit{Repository: "ghcr.io/fork/frr", Tag: "1.7"}, b),
			"extension frr: 1.7 " + frr + "@" + digestOf("frr") + " → 1.7 ghcr.io/fork/frr@" + digestOf("fork"),
		},
	} {
		changes := Compare(lock(a, b), tc.lock)
		if len(changes) != 1 || !slices.Equal(changes[0].Reasons, []string{tc.reason}) {
			t.Errorf("changes %+v, want one for %q", changes, tc.reason)
		}
	}
	order, err := base.BuildOrder()
	var names []string
	for _, x := range order {
		names = append(names, x.Name)
	}
	if diff := cmp.Diff([]string{"qemu-guest-agent", "frr", "bgp"}, names); diff != "" || err != nil {
		t.Errorf("build order (-want +got):\n%s%v", diff, err)
	}
	if got := base.Outdated(catalog()); len(got) > 0 {
		t.Errorf("a factory is blamed for what it can't detect: %v", got)
	}
}

// TestExplicitOfAnOfficialPath: a copy of an official extension elsewhere is not the
// official one, nor pinned like it.
func TestExplicitOfAnOfficialPath(t *testing.T) {
	t.Parallel()
	const copied = "registry.example/siderolabs/iscsi-tools"
	images := newShelf(catalog())
	images.put(copied, "1.0", digestOf("copy"), ExtensionImage{Architectures: []string{"amd64"}, Name: "iscsi-tools", Version: "1.0"})
	from := Sources{Catalog: catalog(), Images: images}
	req := own(agent, Explicit{Repository: copied, Tag: "1.0"})
	l, _, err := Resolve(t.Context(), req, from)
	must.Do(t, err)
	req.Old = &l
	again, warnings, err := Resolve(t.Context(), req, from)
	if diff := cmp.Diff(l, again); err != nil || diff != "" || len(warnings) > 0 {
		t.Errorf("resolved again: %v, %v\n%s", err, warnings, diff)
	}
	req = request(map[string]string{"a": strings.Replace(agent, "qemu-guest-agent", "iscsi-tools", 1)})
	req.Old = &l
	official, _, err := Resolve(t.Context(), req, from)
	must.Do(t, err)
	if x := official.Schematics["a"].Extensions[0]; x.Digest != digestOf("iscsi-tools") || x.Explicit {
		t.Errorf("the official one is %+v", x)
	}
}

// TestMatchesExplicit: a lock of other references does not match.
func TestMatchesExplicit(t *testing.T) {
	t.Parallel()
	one := digestOf("one")
	images := newShelf(nil)
	images.put(frr, "1.7", one, frrImage("1.7"))
	l, _, err := Resolve(t.Context(), own("customization: {}\n", Explicit{Repository: frr, Tag: "1.7"}), Sources{Catalog: catalog(), Images: images})
	must.Do(t, err)
	for name, tc := range map[string]struct {
		wanted []Explicit
		ok     bool
	}{
		"the same":               {[]Explicit{{Repository: frr, Tag: "1.7"}}, true},
		"its digest written out": {[]Explicit{{Repository: frr, Tag: "1.7", Digest: one}}, true},
		"another digest":         {[]Explicit{{Repository: frr, Tag: "1.7", Digest: digestOf("two")}}, false},
		"another tag":            {[]Explicit{{Repository: frr, Tag: "1.8"}}, false},
		"no tag":                 {[]Explicit{{Repository: frr, Digest: one}}, false},
		"another repository":     {[]Explicit{{Repository: bgp, Tag: "1.7"}}, false},
		"none":                   {nil, false},
		"one more":               {[]Explicit{{Repository: frr, Tag: "1.7"}, {Repository: bgp, Tag: "2"}}, false},
	} {
		err := l.Matches(own("customization: {}\n", slices.Clone(tc.wanted)...))
		if ok := err == nil; ok != tc.ok || !ok && err.Error() != "schematic a has changed since it was locked" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const agentRef = "ghcr.io/siderolabs/qemu-guest-agent"

// TestPinOfficial: recast.yaml may give the digest of an official extension, whether
// or not the schematic's file names it. Other schematics, and later locks, still
// follow the list.
func TestPinOfficial(t *testing.T) {
	t.Parallel()
	older := digestOf("an older one")
	pin := Explicit{Repository: agentRef, Digest: older, Place: "recast.yaml:9:1"}
	want := Extension{Name: "qemu-guest-agent", Version: "0.9", Ref: agentRef, Digest: older, Explicit: true}
	both := "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent, siderolabs/iscsi-tools]}}\n"
	type row struct {
		text  string
		order []string
	}
	must.Each(t, map[string]row{
		"named in the file, too": {both, []string{"qemu-guest-agent", "iscsi-tools"}},
		"in recast.yaml alone":   {strings.Replace(both, "siderolabs/qemu-guest-agent, ", "", 1), []string{"iscsi-tools", "qemu-guest-agent"}},
	}, func(t *testing.T, tc row) {
		images := newShelf(catalog())
		images.put(agentRef, "0.9", older, ExtensionImage{Architectures: []string{"amd64"}, Name: "qemu-guest-agent", Version: "0.9"})
		from := Sources{Catalog: catalog(), Images: images}
		req := own(tc.text, pin)
		req.Files["b"] = File{Path: "b.yaml", Data: []byte(both)}
		for range 2 { // from nothing, and over the first lock
			l, _, err := Resolve(t.Context(), req, from)
			must.Do(t, err)
			a, b := l.Schematics["a"], l.Schematics["b"]
			if len(a.Extensions) != 2 {
				t.Fatalf("locked %+v", a.Extensions)
			}
			must.Equal(t, "pinned", want, a.Extensions[1])
			if x := b.Extensions[1]; x.Digest != digestOf("qemu-guest-agent") || x.Explicit {
				t.Errorf("of the other schematic: %+v", x)
			}
			order, err := a.BuildOrder()
			var names []string
			for _, x := range order {
				names = append(names, x.Name)
			}
			if diff := cmp.Diff(tc.order, names); diff != "" || err != nil {
				t.Errorf("build order (-want +got):\n%s%v", diff, err)
			}
			if got := a.Outdated(catalog()); len(got) > 0 {
				t.Errorf("a factory is asked for what it can't build: %v", got)
			}
			must.Do(t, l.Matches(req))
			text := must.Get(formatLock(l))(t)
			if _, err := ParseLock("recast.lock", text); err != nil {
				t.Errorf("the lock can't be read back: %v", err)
			}
			req.Old = &l
		}
		req = own(both)
		req.Old = nil
		unpinned, _, err := Resolve(t.Context(), req, from)
		if err != nil || unpinned.Schematics["a"].Extensions[1].Digest != digestOf("qemu-guest-agent") {
			t.Errorf("unpinned: %v, %+v", err, unpinned.Schematics["a"].Extensions)
		}
	})
}
