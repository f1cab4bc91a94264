package schematics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
		if (err != nil) != (tc.want != nil) {
			t.Fatalf("error = %v, want %q", err, tc.want)
		}
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
	if want := lockOf(t, "second").Key(); !found || got.Key() != want || err != nil {
		t.Errorf("%t, %v: not the second one", found, err)
	}
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
		if !strings.HasPrefix(why, tc.why) || (why == "") != (tc.why == "") {
			t.Errorf("%q, want %q", why, tc.why)
		}
	})
}
