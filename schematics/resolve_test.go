package schematics

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func digestOf(text string) string { return "sha256:" + sum(text) }

func request(texts map[string]string) Request {
	req := Request{Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud", Files: map[string]File{}}
	for name, text := range texts {
		req.Files[name] = File{Path: name + ".yaml", Data: []byte(text)}
	}
	return req
}

const agent = "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent]}}\n"

func TestResolve(t *testing.T) {
	t.Parallel()
	got := resolve(t, request(map[string]string{
		"plain": "customization: {}\n",
		"tools": "customization:\n  extraKernelArgs: [console=ttyS0]\n  systemExtensions: {officialExtensions: [siderolabs/util-linux-tools, siderolabs/i915]}\n",
	}), catalog())
	tools := "customization:\n    extraKernelArgs:\n        - console=ttyS0\n        - recast.lock=LOCKHASH\n" +
		"    systemExtensions:\n        officialExtensions:\n            - siderolabs/util-linux-tools\n            - siderolabs/i915\n"
	toolsHash := "sha256-" + sum(digestOf("i915")+"\n"+digestOf("util-linux-tools"))
	if digestOf("i915") > digestOf("util-linux-tools") {
		toolsHash = "sha256-" + sum(digestOf("util-linux-tools")+"\n"+digestOf("i915"))
	}
	want := Lock{
		Version: 1, Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud",
		Schematics: map[string]Locked{
			"plain": {
				File: "plain.yaml", LockHash: "sha256-" + sum(""), Extensions: []Extension{},
				Schematic: "customization:\n    extraKernelArgs:\n        - recast.lock=sha256-" + sum("") + "\n",
			},
			"tools": {
				File: "tools.yaml", LockHash: toolsHash,
				Extensions: []Extension{
					{Name: "i915", Version: "1.0", Ref: "ghcr.io/siderolabs/i915", Digest: digestOf("i915")},
					{Name: "util-linux-tools", Version: "1.0", Ref: "ghcr.io/siderolabs/util-linux-tools", Digest: digestOf("util-linux-tools")},
				},
				Schematic: strings.Replace(tools, "LOCKHASH", toolsHash, 1),
			},
		},
	}
	for name, e := range want.Schematics {
		e.SchematicID = sum(e.Schematic)
		e.BuildID = got.Schematics[name].BuildID
		e.ISO.Name = "recast-v1.13.9-" + e.BuildID[:12] + "-nocloud-amd64.iso"
		want.Schematics[name] = e
	}
	want.Checksum = got.Checksum
	must.Equal(t, "lock", want, got)
}

// TestBuildID pins the hash: it names existing images.
func TestBuildID(t *testing.T) {
	t.Parallel()
	e := resolve(t, request(map[string]string{"a": agent}), catalog()).Schematics["a"]
	must.Equal(t, "build ID", "3f96bd292ddd306a90cfc337bdebc4f7708630e2ce9e56f94a1f9ac6c3ec182c", e.BuildID)
}

// TestBuildIDDependsOn changes one input at a time.
func TestBuildIDDependsOn(t *testing.T) {
	t.Parallel()
	base := resolve(t, request(map[string]string{"a": agent}), catalog()).Schematics["a"]
	for name, change := range map[string]func(*Request, *list){
		"Talos":       func(r *Request, _ *list) { r.Talos = "v1.13.10" },
		"arch":        func(r *Request, _ *list) { r.Arch = "arm64" },
		"platform":    func(r *Request, _ *list) { r.Platform = "metal" },
		"secure boot": func(r *Request, _ *list) { r.SecureBoot = true },
		"digest":      func(_ *Request, l *list) { *l = l.with("siderolabs/qemu-guest-agent", digestOf("patched")) },
		"kernel argument": func(r *Request, _ *list) {
			r.Files["a"] = File{Path: "a.yaml", Data: []byte(strings.Replace(agent, "{", "{extraKernelArgs: [quiet], ", 1))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, known := request(map[string]string{"a": agent}), catalog()
			change(&req, &known)
			got := resolve(t, req, known).Schematics["a"]
			must.Hold(t, got.BuildID != base.BuildID, "the build ID stays")
			must.Hold(t, got.ISO.Name != base.ISO.Name, "the ISO's name stays")
			must.Equal(t, "schematic ID changed", name == "digest" || name == "kernel argument", got.SchematicID != base.SchematicID)
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	type row struct {
		texts map[string]string
		want  string
		hint  string
	}
	must.Each(t, map[string]row{
		"nothing": {nil, "there is no schematic to lock", ""},
		"unknown extension": {
			map[string]string{"a": "customization:\n  systemExtensions:\n    officialExtensions:\n      - siderolabs/qemu-guest-agnt\n"},
			`a.yaml:4:9: no official extension "siderolabs/qemu-guest-agnt" for Talos v1.13.9`,
			`did you mean "siderolabs/qemu-guest-agent"?`,
		},
		"without the organisation": {
			map[string]string{"a": "customization: {systemExtensions: {officialExtensions: [iscsi-tools]}}\n"},
			`a.yaml:1:57: no official extension "iscsi-tools" for Talos v1.13.9`,
			`did you mean "siderolabs/iscsi-tools"?`,
		},
		"like nothing": {
			map[string]string{"a": "customization: {systemExtensions: {officialExtensions: [zzz]}}\n"},
			`a.yaml:1:57: no official extension "zzz" for Talos v1.13.9`,
			`the names are those of the Image Factory, such as "siderolabs/qemu-guest-agent"`,
		},
		"twice, once by its old name": {
			map[string]string{"a": "customization: {systemExtensions: {officialExtensions: [siderolabs/i915, siderolabs/i915-ucode]}}\n"},
			`a.yaml:1:74: extension "siderolabs/i915-ucode" is listed twice`, "",
		},
		"our own argument": {
			map[string]string{"a": "customization:\n  extraKernelArgs:\n    - quiet\n    - recast.lock=sha256-0\n"},
			`a.yaml:4:7: the kernel argument "recast.lock=sha256-0" is recast's own: remove it`, "",
		},
		"too many arguments": {
			map[string]string{"a": "customization:\n  extraKernelArgs: [" + strings.Repeat("x", 1617) + "]\n"},
			`a.yaml:2:20: extra kernel arguments take 1701 bytes with recast's own; 1700 is the most that the kernel reads safely`, "",
		},
		"everything at once": {
			map[string]string{
				"a": "customization:\n  extraKernelArgs: [recast.lock=x]\n  systemExtensions: {officialExtensions: [zzz]}\n",
				"b": "customization: {systemExtensions: {officialExtensions: [zzz]}}\n",
			},
			"a.yaml:3:43: no official extension \"zzz\" for Talos v1.13.9\n" +
				"a.yaml:2:21: the kernel argument \"recast.lock=x\" is recast's own: remove it\n" +
				"b.yaml:1:57: no official extension \"zzz\" for Talos v1.13.9",
			`the names are those of the Image Factory, such as "siderolabs/qemu-guest-agent"`,
		},
	}, func(t *testing.T, tc row) {
		_, _, err := Resolve(t.Context(), request(tc.texts), Sources{Catalog: catalog(), Images: newShelf(catalog()), Factory: &maker{extensions: catalog()}})
		must.Be(t, err != nil, "no error")
		must.Equal(t, "error", tc.want, err.Error())
		must.Equal(t, "kind", fault.Config, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
	longest := "customization: {extraKernelArgs: [" + strings.Repeat("x", 1616) + "]}\n"
	resolve(t, request(map[string]string{"a": longest}), catalog())
}

func TestResolvePassesErrorsOn(t *testing.T) {
	t.Parallel()
	secure := request(map[string]string{"a": agent})
	secure.SecureBoot = true
	overlay := request(map[string]string{"a": "overlay: {name: rpi_generic}\ncustomization: {}\n"})
	for name, tc := range map[string]struct {
		req  Request
		harm func(*Sources)
		want string
	}{
		"catalog":     {request(map[string]string{"a": agent}), func(s *Sources) { s.Catalog = nowhere{} }, "list the official extensions for Talos v1.13.9: away"},
		"factory":     {request(map[string]string{"a": agent}), func(s *Sources) { s.Factory = &maker{fail: errAway} }, "ask the factory which Talos versions are marked broken: away"},
		"registry":    {request(map[string]string{"a": agent}), func(s *Sources) { s.Images = &shelf{fail: errAway} }, `a.yaml:1:57: extension "siderolabs/qemu-guest-agent": read the extension: away`},
		"certificate": {secure, func(s *Sources) { s.Factory = &maker{extensions: catalog()} }, "ask for the factory's Secure Boot certificate: secure boot is disabled"},
		"no PEM":      {secure, func(s *Sources) { s.Factory = &maker{certificate: []byte("<html>")} }, "the factory's Secure Boot certificate is not a PEM certificate"},
		"no factory":  {secure, func(s *Sources) { s.Factory = nil }, "images for Secure Boot are signed by an Image Factory, and no factory is used here"},
		"no overlays": {overlay, func(s *Sources) { s.Factory = nil }, "overlays are listed by an Image Factory, and there is none"},
	} {
		from := Sources{Catalog: catalog(), Images: newShelf(catalog()), Factory: &maker{extensions: catalog()}}
		tc.harm(&from)
		if _, _, err := Resolve(t.Context(), tc.req, from); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

func TestResolveWarns(t *testing.T) {
	t.Parallel()
	const name = "siderolabs/qemu-guest-agent"
	old, patched := digestOf("qemu-guest-agent"), digestOf("patched")
	locked := resolve(t, request(map[string]string{"a": agent}), catalog())
	const (
		restart = "the factory keeps its list until it restarts: restart it or wait; `recast publish --only build` refuses until then"
		would   = "the factory would build extension " + name + " with "
	)
	differ := func(locked, found, text, hint string) []Warning {
		return []Warning{{Kind: FactoryDiffers, Subject: name, Locked: locked, Found: found, Text: text, Hint: hint}}
	}
	other := digestOf("other")
	republished := Warning{
		Kind: Republished, Subject: name, Locked: old, Found: patched, Hint: "`recast lock --update` takes it; until then the locked one is built in",
		Text: "extension " + name + " 1.0 was republished: the registry lists " + patched + ", locked is " + old,
	}
	type row struct {
		old      *Lock
		registry list
		factory  list
		want     []Warning
	}
	must.Each(t, map[string]row{
		"the same":                               {nil, catalog(), catalog(), nil},
		"a stale factory":                        {nil, catalog().with(name, patched), catalog(), differ(patched, old, would+old+", but the lock says "+patched, restart)},
		"the lock is behind":                     {&locked, catalog().with(name, patched), catalog().with(name, patched), differ(old, patched, would+patched+", but the lock says "+old, "it was republished, and the registry has it too: run `recast lock --update`")},
		"the factory lacks it":                   {nil, catalog(), nil, differ(old, "", "the factory does not have extension "+name+", locked at "+old, restart)},
		"republished, the factory does not know": {&locked, catalog().with(name, patched), catalog(), []Warning{republished}},
		"all three differ": {
			&locked, catalog().with(name, patched), catalog().with(name, other),
			append(differ(old, other, would+other+", but the lock says "+old, "the factory keeps its list until it restarts: restart it or wait; if it is ahead, run `recast lock --update`"), republished),
		},
	}, func(t *testing.T, tc row) {
		req := request(map[string]string{"a": agent, "b": agent})
		req.Old = tc.old
		_, got, err := Resolve(t.Context(), req, Sources{Catalog: tc.registry, Images: newShelf(tc.registry), Factory: &maker{extensions: tc.factory}})
		must.Do(t, err)
		must.Equal(t, "warnings", tc.want, got)
	})
}

// TestResolveAgainstOld: digests stay until an update is requested, and results stay with their build.
func TestResolveAgainstOld(t *testing.T) {
	t.Parallel()
	const name = "siderolabs/qemu-guest-agent"
	old := resolve(t, request(map[string]string{"a": agent, "plain": "customization: {}\n"}), catalog())
	built := old.Clone()
	for _, n := range built.Names() {
		e := built.Schematics[n]
		e.Installer = "factory.example/installer/" + n + "@" + digestOf(n)
		e.ISO.SHA256, e.ISO.SizeBytes = sum(n), 7
		e.Disk = Disk{BootFile: BootFile{Name: built.DiskName(e), SHA256: sum(n + " disk"), SizeBytes: 8}, DiskBytes: 9}
		built.Schematics[n] = e
	}
	patched := catalog().with(name, digestOf("patched"))
	req := request(map[string]string{"a": agent, "plain": "customization: {}\n"})
	req.Old = &built

	kept, warnings, err := Resolve(t.Context(), req, Sources{Catalog: patched, Images: newShelf(patched)})
	if err != nil || len(warnings) != 1 {
		t.Fatal(warnings, err)
	}
	built.Checksum = built.checksum()
	must.Equal(t, "no change was requested, yet the lock changes", built, kept)

	req.Update = true
	updated := resolve(t, req, patched)
	if got := updated.Schematics["a"]; got.Installer != "" || got.ISO.SHA256 != "" || got.Disk != (Disk{}) || got.Extensions[0].Digest != digestOf("patched") {
		t.Errorf("after the update: %+v", got)
	}
	must.Equal(t, "a build that does not change", built.Schematics["plain"], updated.Schematics["plain"])

	req.Update, req.Talos = false, "v1.13.10"
	if got := resolve(t, req, patched).Schematics["a"]; got.Extensions[0].Digest != digestOf("patched") {
		t.Errorf("another Talos version keeps digest %s", got.Extensions[0].Digest)
	}
}

// TestResolvePinsTheImager: what Talos comes from is pinned where the imager builds, and another digest changes no build.
func TestResolvePinsTheImager(t *testing.T) {
	t.Parallel()
	const image, base = "ghcr.io/siderolabs/imager", "ghcr.io/siderolabs/installer-base"
	world := newShelf(nil)
	for _, talos := range []string{"v1.13.9", "v1.13.10"} {
		world.tags[image+":"+talos], world.tags[base+":"+talos] = digestOf("imager "+talos), digestOf("base "+talos)
	}
	req := request(map[string]string{"a": "customization: {}\n"})
	req.Imager = Imager{Image: image, Base: base}
	lock := func(change func(*Request)) (Lock, []Warning) {
		t.Helper()
		req := req
		change(&req)
		l, warnings, err := Resolve(t.Context(), req, Sources{Catalog: list{}, Images: world})
		must.Do(t, err)
		return l, warnings
	}
	before, _ := lock(func(*Request) {})
	must.Equal(t, "built by a factory", Imager{}, before.Imager)

	byImager := map[string]File{"a": {Path: "a.yaml", Data: req.Files["a"].Data, Imager: true}}
	req.Files, req.Old = byImager, &before
	old, _ := lock(func(*Request) {})
	must.Equal(t, "a lock from before", Imager{image + "@" + digestOf("imager v1.13.9"), base + "@" + digestOf("base v1.13.9")}, old.Imager)
	must.Equal(t, "its builds", before.Schematics, old.Schematics)
	must.Hold(t, before.Pinned() != old.Pinned(), "a plan with the one is a plan with the other")
	must.Get(ParseLock("recast.lock", must.Get(formatLock(old))(t)))(t)
	broken := old.Clone()
	broken.Imager.Base = base + ":v1.13.9"
	must.Contain(t, "a tag", fmt.Sprint(must.Err(ParseLock("recast.lock", must.Get(formatLock(broken))(t)))), "imager.base")

	req.Old = &old
	world.tags[base+":v1.13.9"] = digestOf("evil")
	moved, warnings := lock(func(*Request) {})
	must.Equal(t, "the tag was moved", old, moved)
	must.Hold(t, len(warnings) == 1 && warnings[0].Kind == TagMoved && warnings[0].Subject == base+":v1.13.9" &&
		warnings[0].Locked == digestOf("base v1.13.9") && warnings[0].Found == digestOf("evil"), "warnings %+v", warnings)
	updated, warnings := lock(func(r *Request) { r.Update = true })
	must.Equal(t, "--update", base+"@"+digestOf("evil"), updated.Imager.Base)
	must.Equal(t, "--update says that the tag was moved", 1, len(warnings))
	delete(world.tags, base+":v1.13.9")
	gone, warnings := lock(func(*Request) {})
	must.Hold(t, gone.Imager == old.Imager && len(warnings) == 1, "the tag is gone: %+v, %+v", gone.Imager, warnings)
	next, warnings := lock(func(r *Request) { r.Talos = "v1.13.10" })
	must.Hold(t, next.Imager.Base == base+"@"+digestOf("base v1.13.10") && len(warnings) == 0, "another version: %+v, %+v", next.Imager, warnings)
	program, _ := lock(func(r *Request) { r.Imager.Image = "" })
	must.Equal(t, "a program of the user", Imager{Base: old.Imager.Base}, program.Imager)
	req.Old = nil
	_, _, err := Resolve(t.Context(), req, Sources{Catalog: list{}, Images: world})
	must.FailAs(t, err, fault.Config, "there is no "+base+":v1.13.9")
}

// TestResolveKeepsSigners: verified signers outlive the builds, or a factory with
// another key would be trusted after each update.
func TestResolveKeepsSigners(t *testing.T) {
	t.Parallel()
	files := map[string]string{"a": agent, "plain": "customization: {}\n"}
	signed := func(l Lock, key string) Lock {
		l = l.Clone()
		e := l.Schematics["a"]
		e.Installer, e.Signer = "factory.example/installer/a@"+digestOf("a"), sum(key)
		l.Schematics["a"] = e
		return l
	}
	next := func(old Lock, talos string) Lock {
		req := request(files)
		req.Old, req.Talos = &old, talos
		return resolve(t, req, catalog())
	}
	old := signed(resolve(t, request(files), catalog()), "key")
	if again := next(old, "v1.13.9"); again.Signers != nil || again.Schematics["a"].Signer != sum("key") {
		t.Errorf("the same builds: %+v", again)
	}
	updated := next(old, "v1.13.10")
	again := next(updated, "v1.13.10")
	later := next(again, "v1.13.11") // nothing was built meanwhile
	for name, l := range map[string]Lock{"other builds": updated, "the same builds": again, "other builds again": later} {
		diff := cmp.Diff([]string{sum("key")}, l.KnownSigners())
		must.Hold(t, diff == "" && l.Schematics["a"].Signer == "", "%s: signers (-want +got):\n%s", name, diff)
	}
	must.Equal(t, "checksum, locking the same again", again.Checksum, updated.Checksum)
	must.Equal(t, "with a key that was accepted later", []string{sum("new key")}, next(signed(later, "new key"), "v1.13.12").KnownSigners())
}

// TestRebuild: each rebuild gives the same content another name, and the count stays
// with the schematic, whatever else changes.
func TestRebuild(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"a": agent, "plain": "customization: {}\n"}
	next := func(old *Lock, known list, change func(*Request)) Lock {
		req := request(texts)
		req.Old = old
		change(&req)
		return resolve(t, req, known)
	}
	leave := func(*Request) {}
	again := func(r *Request) {
		f := r.Files["a"]
		f.Rebuild = true
		r.Files["a"] = f
	}
	first := next(nil, catalog(), leave)
	once := next(&first, catalog(), again)
	twice := next(&once, catalog(), again)
	ids := map[string]bool{}
	for i, l := range []Lock{first, once, twice} {
		e := l.Schematics["a"]
		ids[e.SchematicID+e.LockHash], ids[e.BuildID], ids[e.ISO.Name] = true, true, true
		must.Hold(t, e.Rebuild == i && userPart(e) == userPart(first.Schematics["a"]), "rebuild %d: %+v", i, e)
		must.Equal(t, fmt.Sprintf("rebuild %d: the other schematic", i), first.Schematics["plain"], l.Schematics["plain"])
		path := filepath.Join(t.TempDir(), "recast.lock")
		must.Do(t, WriteLock(path, l))
		if got, err := ReadLock(path); err != nil || cmp.Diff(l, got) != "" {
			t.Errorf("rebuild %d: read back: %v\n%s", i, err, cmp.Diff(l, got))
		}
	}
	must.Hold(t, len(ids) == 9, "%d names for three builds, want 9", len(ids))
	must.Equal(t, "reasons", []string{"rebuild 1 → 2"}, Compare(once, twice)[0].Reasons)

	must.Equal(t, "locking the same again", twice, next(&twice, catalog(), leave))
	update := func(r *Request) { r.Update = true }
	patched := catalog().with("siderolabs/qemu-guest-agent", digestOf("patched"))
	for name, l := range map[string]Lock{
		"update": next(&twice, patched, update), "another Talos version": next(&twice, catalog(), func(r *Request) { r.Talos = "v1.13.10" }),
	} {
		if e := l.Schematics["a"]; e.Rebuild != 2 || e.BuildID == twice.Schematics["a"].BuildID || l.Schematics["plain"].Rebuild != 0 {
			t.Errorf("%s: %+v", name, e)
		}
	}
	must.Equal(t, "got", twice.Checksum, next(&twice, catalog(), update).Checksum)
}

// TestResolveSaysWhatItWaitsFor: registries and factories may take minutes to answer.
func TestResolveSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	images := newShelf(catalog())
	putFRR("1.7", digestOf("frr"))(images)
	req := own(agent, Explicit{Repository: frr, Tag: "1.7"})
	req.Files["b"] = File{Path: "b.yaml", Data: []byte(agent)}
	var notes []string
	req.Note = func(text string) { notes = append(notes, text) }
	if _, _, err := Resolve(t.Context(), req, Sources{Catalog: catalog(), Images: images, Factory: &maker{extensions: catalog()}}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"the registry's list of official extensions for Talos v1.13.9",
		"the Image Factory's list of extensions for Talos v1.13.9",
		"extension " + agentRef + "@" + digestOf("qemu-guest-agent"),
		"the tag " + frr + ":1.7",
		"extension " + frr + "@" + digestOf("frr"),
	}
	must.Hold(t, slices.Equal(notes, want), "notes\n got %q\nwant %q", notes, want)
}

// resolve makes a lock without warnings.
func resolve(t *testing.T, req Request, known list) Lock {
	t.Helper()
	from := Sources{Catalog: known, Images: newShelf(known)}
	if req.SecureBoot {
		from.Factory = &maker{extensions: known, certificate: certificate("one")}
	}
	l, warnings, err := Resolve(t.Context(), req, from)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	return l
}

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
		must.Hold(t, !tc.imager || len(factory.asked) == 0, "a factory that builds nothing was asked for %v", factory.asked)
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
	must.Hold(t, one.SecureBootKey == sum("one") && len(warnings) == 0, "key %s, warnings %v", one.SecureBootKey, warnings)
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
	must.Hold(t, one.checkSecureBoot([]byte("x")) != nil, "a missing certificate counts as the locked one")
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
	diff := cmp.Diff(old, kept)
	must.Hold(t, err == nil && diff == "", "the lock moved without an update: %v\n%s", err, diff)
	want := []Warning{{
		Kind: FactoryDiffers, Subject: "rpi_generic", Locked: one, Found: two, Text: "the factory would build overlay rpi_generic with " + two + ", but the lock says " + one,
		Hint: "the factory keeps its list until it restarts: restart it or wait; if it is ahead, run `recast lock --update`",
	}}
	must.Equal(t, "warnings", want, warnings)
	for digest, kind := range map[string]fault.Kind{one: fault.Failed, two: fault.Refused} {
		err := old.CheckFactory(t.Context(), "a", &maker{overlays: listed(digest)})
		must.Hold(t, (err != nil) == (digest == two) && fault.KindOf(err) == kind,
			"a factory with overlay %s: %v", digest, err)
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
		must.Hold(t, err != nil && err.Error() == tc.err && strings.Join(fault.Hints(err), "; ") == tc.hint,
			"%s: %v (%q), want %s (%q)", name, err, fault.Hints(err), tc.err, tc.hint)
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
	diff := cmp.Diff(want, order)
	must.Hold(t, diff == "" && err == nil, "build order (-want +got):\n%s%v", diff, err)
	req.Arch = "arm64"
	_, _, err = Resolve(t.Context(), req, Sources{Catalog: known, Images: images})
	wrong := `a.yaml:1:57: extension "siderolabs/nvidia-fabricmanager": ghcr.io/siderolabs/nvidia-fabric-manager-lts@` + digestOf("nvidia") + " does not exist for arm64, only for amd64"
	must.Equal(t, "an architecture without an image", wrong, fmt.Sprint(err))
	must.Equal(t, "kind of the error", fault.Config, fault.KindOf(err))
}
