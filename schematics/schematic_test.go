package schematics

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/image-factory/pkg/schematic"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// examples are the schematics to start from, which the example of recast.yaml names.
var examples = os.DirFS("../testdata/schematics")

// TestExampleIDs compares our IDs with an Image Factory's for the same file.
func TestExampleIDs(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"empty.yaml":            "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba",
		"qemu-guest-agent.yaml": "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515",
		"storage.yaml":          "53513e54bb39202f35694412577a6bc53d484744d35a126e5d42ef34785c0d83",
		"kernel-args.yaml":      "bdf2ed8dac6e2fe88689913bdd5b1c8cfbdca5220440eea17a549ce09a276342",
		"quoting.yaml":          "4479b58b653744435fe973f716246b61dcf2bfe50e1acfeae367235f6bee15b0",
		"meta.yaml":             "1edf8e2622732e5e957b34340b7c0fd4d349ad4103fea66d48f871a9b2aa2535",
		"overlay.yaml":          "43038dc8c417c97c33365f2fab10d657121cbe087320f9b78e16a1072b35cd28",
		"secureboot.yaml":       "39de789a4d6ae4c93ef7993ba395266b45058ca17647061308f77856f0675259",
	}
	got := map[string]string{}
	files := must.Get(fs.Glob(examples, "*.yaml"))(t)
	for _, file := range files {
		data := must.Get(fs.ReadFile(examples, file))(t)
		s := must.Get(Parse(file, data))(t)
		got[file] = s.ID()
		must.Equal(t, file+": a factory's ID, posted unchanged", s.ID(), serverID(t, data))
		must.Equal(t, file, s.ID(), serverID(t, []byte(s.Canonical())))
	}
	must.Equal(t, "IDs", want, got)
}

func serverID(t *testing.T, posted []byte) string {
	t.Helper()
	doc := must.Get(schematic.Unmarshal(posted))(t)
	return must.Get(doc.ID())(t)
}

// TestPublishedID is an ID of factory.talos.dev quoted in the documentation of Longhorn and others.
func TestPublishedID(t *testing.T) {
	t.Parallel()
	s := must.Get(Parse("s.yaml", []byte(
		"customization: {systemExtensions: {officialExtensions: [siderolabs/iscsi-tools, siderolabs/util-linux-tools]}}")))(t)
	if want := "613e1592b2da41ae5e265e8789429f22e121aab91cb4deb6bc3c0b6262961245"; s.ID() != want {
		t.Errorf("ID = %s, want %s", s.ID(), want)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	type row struct {
		text string
		want string
		hint string
	}
	must.Each(t, map[string]row{
		"empty":         {"", "s.yaml: the file is empty", `an image without any customization is written "customization: {}"`},
		"only comments": {"# nothing\n", "s.yaml: the file is empty", `an image without any customization is written "customization: {}"`},
		"unknown keys": {
			"customization: {}\nfoo: 1\n\nbar: 2\n",
			"s.yaml:2:1: unknown key \"foo\"\ns.yaml:4:1: unknown key \"bar\"", "",
		},
		"unknown key below": {"customization:\n  extraKernelArg: [a]\n", `s.yaml:2:3: unknown key "extraKernelArg"`, ""},
		"wrong type":        {"customization:\n  meta: [{key: 300, value: x}]\n", "s.yaml:2:16: cannot construct !!int `300` into uint8", ""},
		"a list":            {"[]", "s.yaml:1:1: cannot construct a list as a schematic", ""},
		"not YAML":          {"customization:\n  extraKernelArgs:\n - a\n  - b\n", "s.yaml:3:2: did not find expected key", ""},
		"a key twice":       {"customization: {}\ncustomization: {}\n", `s.yaml:2:1: mapping key "customization" already defined at line 1`, ""},
		"two documents":     {"customization: {}\n---\ncustomization: {}\n", "s.yaml:2: only one YAML document is allowed in this file", ""},
		"owner":             {"customization: {}\nowner: me\n", "s.yaml:2:8: owner field is only supported in Enterprise edition", ""},
		"bootloader":        {"customization:\n  bootloader: lilo\n", "s.yaml:2:15: lilo does not belong to BootloaderKind values", ""},
	}, func(t *testing.T, tc row) {
		_, err := Parse("s.yaml", []byte(tc.text))
		must.Be(t, err != nil, "no error")
		must.Equal(t, "error", tc.want, err.Error())
		must.Equal(t, "kind", fault.Config, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
}

func TestWithLock(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]string{
		"none":  "customization: {}\n",
		"some":  "customization:\n  extraKernelArgs: [console=ttyS0]\n",
		"other": "overlay: {image: a/b, name: c, options: {x: 1, y: [no, 1.10, 2020-01-01]}}\ncustomization: {}\n",
	}, func(t *testing.T, text string) {
		s := must.Get(Parse("s.yaml", []byte(text)))(t)
		locked := must.Get(s.withLock("sha256-00"))(t)
		must.Equal(t, "lock hash of the schematic itself", "", s.lockHash())
		must.Equal(t, "lock hash", "sha256-00", locked.lockHash())
		wantArgs := append(slices.Clone(s.doc.Customization.ExtraKernelArgs), "recast.lock=sha256-00")
		must.Equal(t, "kernel arguments", wantArgs, Locked{Schematic: locked.Canonical()}.KernelArgs())
		must.Hold(t, s.ID() != locked.ID(), "the lock hash does not change the ID")
		must.Equal(t, "without the lock hash the schematic differs", s.Canonical(), locked.withoutLock())
	})
}

func FuzzParse(f *testing.F) {
	err := fs.WalkDir(examples, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(examples, path)
		f.Add(string(data))
		return err
	})
	must.Do(f, err)
	f.Add("customization: {meta: [{key: 300, value: x}]}\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("s.yaml", []byte(text))
		if err != nil {
			must.Be(t, fault.KindOf(err) == fault.Config && strings.HasPrefix(err.Error(), "s.yaml"),
				"not an error of kind Config with its place: %v", err)
			return
		}
		again, err := Parse("s.yaml", []byte(s.Canonical()))
		if err != nil {
			t.Fatalf("the canonical form can't be read: %v\n%s", err, s.Canonical())
		}
		if again.ID() != s.ID() || again.Canonical() != s.Canonical() {
			t.Fatalf("the canonical form is not stable:\n%s", s.Canonical())
		}
		locked := must.Get(s.withLock("sha256-00"))(t)
		if locked.lockHash() != "sha256-00" || locked.withoutLock() != s.Canonical() {
			t.Fatalf("the lock hash is not placed as expected:\n%s", locked.Canonical())
		}
	})
}

func TestParseAllReportsEveryFile(t *testing.T) {
	t.Parallel()
	_, err := parseAll(map[string]File{
		"a": {Path: "a.yaml", Data: []byte("x: 1\n")},
		"b": {Path: "b.yaml", Data: []byte("y: 1\n")},
	})
	want := "a.yaml:1:1: unknown key \"x\"\nb.yaml:1:1: unknown key \"y\""
	must.Equal(t, "error", want, fmt.Sprint(err))
	must.Equal(t, "kind", fault.Config, fault.KindOf(err))
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"extraKernelArgs: [console=ttyS0, net.ifnames=0, talos.platform=nocloud]":                                            "",
		"extraKernelArgs: ['talos.config=https://x.example/c?uuid=${uuid}&mac=${mac}&h=']":                                   "",
		"extraKernelArgs: [talos.config=none, 'siderolink.api=grpc://omni.example:8090']":                                    "",
		"extraKernelArgs: ['talos.config.oauth.token_url=https://x.example/token', 'talos.environment=http_proxy=http://p']": "",
		"meta: [{key: 10, value: 'links: [{name: wg0, wireguard: {listenPort: 1}}]'}]":                                       "",
		"embeddedMachineConfiguration: 'version: v1alpha1'":                                                                  "the machine configuration that it embeds",
		"extraKernelArgs: ['siderolink.api=grpc://omni.example:8090?jointoken=w7uVuW3zbVKIYQuz']":                            "the kernel argument siderolink.api",
		"extraKernelArgs: ['quiet siderolink.api=https://o?a=b&jointoken=x \"siderolink.api=https://o?jointoken=x\"']":       "the kernel argument siderolink.api",
		"extraKernelArgs: [talos.config.inline=KLUv, -talos.config.early=KLUv]":                                              "the kernel argument talos.config.early, the kernel argument talos.config.inline",
		"extraKernelArgs: ['talos.config=https://me:word@x.example/c']":                                                      "the kernel argument talos.config",
		"extraKernelArgs: ['talos.config=https://x.example/c?sig=0a1b']":                                                     "the kernel argument talos.config",
		"extraKernelArgs: ['talos.config=:%zz']":                                                                             "the kernel argument talos.config",
		"extraKernelArgs: [talos.config.oauth.client_secret=word]":                                                           "the kernel argument talos.config.oauth.client_secret",
		"extraKernelArgs: ['talos.environment=http_proxy=http://me:word@p']":                                                 "the kernel argument talos.environment",
		"meta: [{key: 10, value: 'links: [{name: wg0, wireguard: {privateKey: 0a1b}}]'}]":                                    "the META value 0xa",
	} {
		s, err := Parse("test", []byte("customization: {"+text+"}"))
		must.Be(t, err == nil, "%s: %v", text, err)
		must.Equal(t, text, want, strings.Join(s.Secrets(), ", "))
	}
}

// TestWriteLockWithSecrets: a schematic is in the lock with everything that it holds.
func TestWriteLockWithSecrets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "recast.lock")
	for _, c := range []struct {
		args   string
		mode   os.FileMode
		header string
	}{
		{"net.ifnames=0", 0o644, lockHeader},
		{"siderolink.api=https://o.example?jointoken=word", 0o600, secretHeader},
		{"quiet", 0o644, lockHeader},
	} {
		l := resolve(t, request(map[string]string{"default": agent, "other": "customization: {extraKernelArgs: ['" + c.args + "']}\n"}), catalog())
		must.Do(t, WriteLock(path, l))
		info := must.Get(os.Stat(path))(t)
		text := must.Get(os.ReadFile(path))(t)
		if info.Mode() != c.mode || !strings.HasPrefix(string(text), c.header) {
			t.Errorf("with %s it has mode %v and begins\n%.100s", c.args, info.Mode(), text)
		}
		must.Equal(t, "read back", l.Checksum, must.Get(ReadLock(path))(t).Checksum)
	}
}

func TestUnlocked(t *testing.T) {
	t.Parallel()
	const plain = `customization:
    extraKernelArgs:
        - net.ifnames=0
    systemExtensions:
        officialExtensions:
            - siderolabs/iscsi-tools
`
	const locked = `customization:
    extraKernelArgs:
        - net.ifnames=0
        - recast.lock=sha256-aa
    systemExtensions:
        officialExtensions:
            - siderolabs/iscsi-tools
`
	for name, text := range map[string]string{"locked": locked, "as it is": plain} {
		s := must.Get(Unlocked(name, []byte(text)))(t)
		must.Equal(t, name, plain, s.Canonical())
	}
	if _, err := Unlocked("newer", []byte("customization: {}\nfuture: 1\n")); err == nil {
		t.Error("fields unknown to this recast were dropped")
	}
}

func TestGuess(t *testing.T) {
	t.Parallel()
	official := []OfficialExtension{{Name: "siderolabs/iscsi-tools"}, {Name: "siderolabs/qemu-guest-agent"}}
	s, unknown, err := Guess("wk1", []string{"frr", "iscsi-tools"}, official)
	must.Do(t, err)
	must.Equal(t, "extensions", []string{"siderolabs/iscsi-tools"}, s.Extensions())
	must.Equal(t, "unknown", []string{"frr"}, unknown)
	if s, _, err := Guess("cp1", nil, official); err != nil || s.Canonical() != "customization: {}\n" {
		t.Errorf("of no extension it is %q, %v", s.Canonical(), err)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	base := request(map[string]string{"a": agent})
	before := resolve(t, base, catalog())
	x := before.Schematics["a"].Extensions[0]
	other := Extension{Name: "iscsi-tools", Version: "1.0", Ref: "ghcr.io/siderolabs/iscsi-tools", Digest: digestOf("iscsi-tools")}
	patched := x
	patched.Digest = digestOf("patched")
	newer := Extension{Name: x.Name, Version: "2.0", Ref: x.Ref, Digest: patched.Digest}
	const both = "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent, siderolabs/iscsi-tools]}}\n"

	type row struct {
		texts   map[string]string
		change  func(*OfficialExtension)
		request func(*Request)
		want    []Change // build IDs are filled in
	}
	must.Each(t, map[string]row{
		"nothing": {texts: map[string]string{"a": agent}},
		"another digest": {
			texts:  map[string]string{"a": agent},
			change: func(o *OfficialExtension) { o.Digest = patched.Digest },
			want: []Change{{
				Schematic: "a", Moved: []Moved{{x, patched}},
				Reasons: []string{"extension qemu-guest-agent 1.0: " + x.Digest + " → " + patched.Digest},
			}},
		},
		"another version": {
			texts:  map[string]string{"a": agent},
			change: func(o *OfficialExtension) { o.Digest, o.Version = newer.Digest, newer.Version },
			want: []Change{{
				Schematic: "a", Moved: []Moved{{x, newer}},
				Reasons: []string{"extension qemu-guest-agent 1.0 → 2.0: " + x.Digest + " → " + newer.Digest},
			}},
		},
		"another Talos": {
			texts: map[string]string{"a": agent}, request: func(r *Request) { r.Talos = "v1.13.10" },
			want: []Change{{Schematic: "a", Moved: []Moved{}, Reasons: []string{"Talos v1.13.9 → v1.13.10"}}},
		},
		"one more extension": {
			texts: map[string]string{"a": both},
			want: []Change{{
				Schematic: "a", Moved: []Moved{{Extension{}, other}},
				Reasons: []string{"extension iscsi-tools 1.0 added: " + other.Digest, "a.yaml changed"},
			}},
		},
		"no extension": {
			texts: map[string]string{"a": "customization: {}\n"},
			want:  []Change{{Schematic: "a", Moved: []Moved{{x, Extension{}}}, Reasons: []string{"extension qemu-guest-agent 1.0 removed", "a.yaml changed"}}},
		},
		"added and removed": {
			texts: map[string]string{"b": agent},
			want: []Change{
				{Schematic: "a", Moved: []Moved{}, Reasons: []string{"removed"}},
				{Schematic: "b", Moved: []Moved{}, Reasons: []string{"added"}},
			},
		},
	}, func(t *testing.T, tc row) {
		req := request(tc.texts)
		if tc.request != nil {
			tc.request(&req)
		}
		known := catalog()
		at := slices.IndexFunc(known, func(o OfficialExtension) bool { return o.Name == "siderolabs/qemu-guest-agent" })
		if tc.change != nil {
			tc.change(&known[at])
		}
		after := resolve(t, req, known)
		for i, c := range tc.want {
			tc.want[i].OldBuild = before.Schematics[c.Schematic].BuildID
			tc.want[i].NewBuild = after.Schematics[c.Schematic].BuildID
		}
		must.Equal(t, "changes", tc.want, Compare(before, after))
	})
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	names := []string{"siderolabs/gvisor", "siderolabs/qemu-guest-agent", "siderolabs/zfs"}
	for unknown, want := range map[string]string{
		"siderolabs/gvisr":            "siderolabs/gvisor",
		"Siderolabs/QEMU-guest-agent": "siderolabs/qemu-guest-agent",
		"zfs":                         "siderolabs/zfs",
		"acme/zfs":                    "siderolabs/zfs",
		"siderolabs/frr-routing":      "",
		"":                            "",
	} {
		must.Equal(t, unknown, want, suggest(unknown, names))
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	lock := resolve(t, request(map[string]string{"a": agent, "b": "customization: {}\n"}), catalog())
	type row struct {
		change func(*Request)
		want   []string // nil: it matches
	}
	must.Each(t, map[string]row{
		"the same": {func(*Request) {}, nil},
		"another way to write it": {func(r *Request) {
			r.Files["b"] = File{Path: "b.yaml", Data: []byte("# a comment\ncustomization:\n  extraKernelArgs: []\n")}
		}, nil},
		"everything else": {func(r *Request) {
			r.Talos, r.Arch, r.Platform, r.SecureBoot = "v1.14.0", "arm64", "metal", true
		}, []string{`Talos version: recast.lock has "v1.13.9", the configuration "v1.14.0"`, "architecture: ", "platform: ", "secure boot: "}},
		"an edited file": {func(r *Request) {
			r.Files["b"] = File{Path: "b.yaml", Data: []byte(agent)}
		}, []string{"schematic b has changed since it was locked"}},
		"other files": {func(r *Request) {
			r.Files["c"] = r.Files["b"]
			delete(r.Files, "b")
		}, []string{"schematic c is not in recast.lock", "schematic b is in recast.lock, but not in the configuration"}},
		"a broken file": {func(r *Request) {
			r.Files["b"] = File{Path: "b.yaml", Data: []byte("x: 1\n")}
		}, []string{`b.yaml:1:1: unknown key "x"`}},
	}, func(t *testing.T, tc row) {
		req := request(map[string]string{"a": agent, "b": "customization: {}\n"})
		tc.change(&req)
		err := lock.Matches(req)
		must.Be(t, (err != nil) == (tc.want != nil), "error = %v, want %q", err, tc.want)
		must.Contain(t, "error", fmt.Sprint(err), tc.want...)
	})
}

func TestCheckRegistered(t *testing.T) {
	t.Parallel()
	e := resolve(t, request(map[string]string{"a": "customization: {extraKernelArgs: ['yes'], meta: [{key: 10, value: on}]}\n"}), catalog()).Schematics["a"]
	other := strings.Repeat("0", 64)
	ids := "the factory gives schematic a the ID " + other + ", but the lock has " + e.SchematicID
	type row struct {
		id, text, want, hint string
	}
	must.Each(t, map[string]row{
		"the same":          {id: e.SchematicID, text: e.Schematic},
		"the same, no text": {id: e.SchematicID},
		"quoted another way": {
			other, strings.Replace(e.Schematic, `"yes"`, "'yes'", 1),
			ids + `: line 3 of its canonical text is "        - 'yes'", of ours "        - \"yes\""`,
			"both say the same, but the factory's YAML library quotes differently, as some of its versions do with strings such as yes, no, on, off: remove such a string from a.yaml, or use a factory of another version",
		},
		"more than we know": {
			other, e.Schematic + "new: 1\n", ids + `: line 8 of its canonical text is "new: 1", of ours ""`,
			"the factory understands the schematic differently than this recast: one of them is too old for what line 8 says",
		},
		"less than we know": {
			other, "customization: {}\n", ids + `: line 1 of its canonical text is "customization: {}", of ours "customization:"`,
			"the factory understands the schematic differently than this recast: one of them is too old for what line 1 says",
		},
		"a wrong sum": {
			other, e.Schematic, ids + ", for the same text",
			"an ID is the SHA-256 of the canonical text: the server is not an Image Factory, or changes what it receives",
		},
	}, func(t *testing.T, tc row) {
		err := e.CheckRegistered("a", tc.id, tc.text)
		if tc.want == "" {
			must.Do(t, err)
			return
		}
		must.Equal(t, "error", tc.want, fmt.Sprint(err))
		must.Equal(t, "kind of the error", fault.Refused, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
}

func lockOf(t *testing.T, arg string) Lock {
	t.Helper()
	return resolve(t, request(map[string]string{"default": "customization: {extraKernelArgs: [" + arg + "=1]}\n"}), catalog())
}

func TestPrevious(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	now := lockOf(t, "now")
	if _, found, err := Previous(dir, now); found || err != nil {
		t.Errorf("without a directory: %t, %v", found, err)
	}
	for i, name := range []string{"first", "second", "now"} {
		past := lockOf(t, name)
		must.Do(t, Archive(dir, past))
		at := time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC)
		must.Do(t, os.Chtimes(filepath.Join(dir, past.Key()+".lock"), at, at))
	}
	got, found, err := Previous(dir, now)
	want := lockOf(t, "second").Key()
	must.Hold(t, found && got.Key() == want && err == nil, "%t, %v: not the second one", found, err)
	must.Do(t, os.WriteFile(filepath.Join(dir, "x.lock"), []byte("talos: ["), 0o600))
	if _, found, err := Previous(dir, now); found || err == nil {
		t.Errorf("with one that can't be read: %t, %v", found, err)
	}
}

const customized = `overlay:
    image: siderolabs/sbc-raspberrypi
    name: rpi_generic
    options:
        configTxt: gpu_mem=128
customization:
    extraKernelArgs:
        - net.ifnames=0
        - recast.lock=sha256-1
    meta:
        - key: 12
          value: "on"
    systemExtensions:
        officialExtensions:
            - siderolabs/zfs
            - siderolabs/i915-ucode
            - siderolabs/agent
    bootloader: sd-boot
`

func TestCustomization(t *testing.T) {
	t.Parallel()
	const embedding = "customization:\n    embeddedMachineConfiguration: |\n        secret\n"
	type row struct {
		schematic string
		want      Customization
	}
	must.Each(t, map[string]row{
		"nothing": {"customization: {}\n", Customization{}},
		"everything": {customized, Customization{
			KernelArgs: []string{"net.ifnames=0", "recast.lock=sha256-1"}, Meta: []MetaValue{{Key: 12, Value: "on"}},
			Bootloader: "sd-boot", OverlayOptions: map[string]any{"configTxt": "gpu_mem=128"},
		}},
		"a machine configuration": {embedding, Customization{EmbeddedConfigSHA256: sum("secret\n")}},
	}, func(t *testing.T, c row) {
		got := must.Get(Locked{File: "base.yaml", Schematic: c.schematic}.Customization())(t)
		must.Equal(t, "result", c.want, got)
	})
}

// The lock lists extensions by name; they are built in the order of the file, under
// their current names, and explicit ones after them.
func TestBuildOrder(t *testing.T) {
	t.Parallel()
	e := Locked{File: "base.yaml", Schematic: customized, Extensions: []Extension{
		{Name: "agent", Ref: "ghcr.io/siderolabs/agent"},
		{Name: "i915", Ref: "ghcr.io/siderolabs/i915"},
		{Name: "zfs", Ref: "ghcr.io/siderolabs/zfs"},
		{Name: "frr", Ref: "ghcr.io/acme/frr", Explicit: true},
		{Name: "bird", Ref: "ghcr.io/acme/bird", Explicit: true},
	}}
	list := must.Get(e.BuildOrder())(t)
	var got []string
	for _, x := range list {
		got = append(got, x.Name)
	}
	must.Equal(t, "result", []string{"zfs", "i915", "agent", "frr", "bird"}, got)
	e.Extensions[0].Explicit = true // pinned by recast.yaml
	if list, err := e.BuildOrder(); err != nil || list[2].Name != "agent" {
		t.Errorf("a pinned one: %v, %v", list, err)
	}
	e.Extensions[0].Ref = "ghcr.io/acme/agent" // of that name, but not the official one
	if list, err := e.BuildOrder(); err == nil {
		t.Errorf("an extension that is not locked: %v", list)
	}
}

// TestNoDisk: what a disk image can't be made of, or not by the imager, has its reason.
func TestNoDisk(t *testing.T) {
	t.Parallel()
	const loops, grub = "before Talos v1.13 the imager needs loop devices", "its bootloader is grub"
	type row struct {
		talos, custom string
		imager        bool
		why           string
	}
	must.Each(t, map[string]row{
		"factory":         {"v1.12.6", "{}", false, ""},
		"imager":          {"v1.13.0", "{}", true, ""},
		"two digits":      {"v1.20.0", "{}", true, ""},
		"older imager":    {"v1.12.11", "{}", true, loops},
		"oldest imager":   {"v1.10.0-rc.0", "{}", true, loops},
		"systemd-boot":    {"v1.13.9", "{bootloader: sd-boot}", true, ""},
		"both":            {"v1.13.9", "{bootloader: dual-boot}", false, ""},
		"GRUB":            {"v1.13.9", "{bootloader: grub}", false, grub},
		"GRUB, imager":    {"v1.13.9", "{bootloader: grub}", true, grub},
		"usual sectors":   {"v1.13.9", "{diskImage: {sectorSize: 512}}", true, ""},
		"foreign sectors": {"v1.13.9", "{diskImage: {sectorSize: 4096}}", false, "its diskImage.sectorSize is 4096, and Proxmox' disks have 512"},
	}, func(t *testing.T, tc row) {
		why := Lock{Talos: tc.talos}.NoDisk(Locked{File: "a.yaml", Schematic: "customization: " + tc.custom + "\n"}, tc.imager)
		must.Hold(t, strings.HasPrefix(why, tc.why) && (why == "") == (tc.why == ""), "%q, want %q", why, tc.why)
	})
}

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
		must.Hold(t, len(changes) == 1 && slices.Equal(changes[0].Reasons, []string{tc.reason}),
			"changes %+v, want one for %q", changes, tc.reason)
	}
	order, err := base.BuildOrder()
	var names []string
	for _, x := range order {
		names = append(names, x.Name)
	}
	diff := cmp.Diff([]string{"qemu-guest-agent", "frr", "bgp"}, names)
	must.Hold(t, diff == "" && err == nil, "build order (-want +got):\n%s%v", diff, err)
	if got := base.Outdated(catalog()); len(got) > 0 {
		t.Errorf("a factory is blamed for what it can't detect: %v", got)
	}
}

// TestExplicitOfAnOfficialPath: a copy of an official extension elsewhere is not the official one, nor pinned like it.
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
	diff := cmp.Diff(l, again)
	must.Hold(t, err == nil && diff == "" && len(warnings) == 0, "resolved again: %v, %v\n%s", err, warnings, diff)
	req = request(map[string]string{"a": strings.Replace(agent, "qemu-guest-agent", "iscsi-tools", 1)})
	req.Old = &l
	official, _, err := Resolve(t.Context(), req, from)
	must.Do(t, err)
	x := official.Schematics["a"].Extensions[0]
	must.Hold(t, x.Digest == digestOf("iscsi-tools") && !x.Explicit, "the official one is %+v", x)
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

// TestPinOfficial: recast.yaml may give the digest of an official extension, whether or not the schematic's file names
// it. Other schematics, and later locks, still follow the list.
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
			must.Be(t, len(a.Extensions) == 2, "locked %+v", a.Extensions)
			must.Equal(t, "pinned", want, a.Extensions[1])
			if x := b.Extensions[1]; x.Digest != digestOf("qemu-guest-agent") || x.Explicit {
				t.Errorf("of the other schematic: %+v", x)
			}
			order, err := a.BuildOrder()
			var names []string
			for _, x := range order {
				names = append(names, x.Name)
			}
			diff := cmp.Diff(tc.order, names)
			must.Hold(t, diff == "" && err == nil, "build order (-want +got):\n%s%v", diff, err)
			got := a.Outdated(catalog())
			must.Hold(t, len(got) == 0, "a factory is asked for what it can't build: %v", got)
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
