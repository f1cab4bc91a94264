package observe

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/words"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	made := func(id, yaml string) func(*Found) {
		return func(f *Found) { f.Machine.Schematic = cluster.SchematicEntry{ID: id, YAML: yaml} }
	}
	type row struct {
		change func(*Found)
		want   []cluster.Reason
	}
	must.Each(t, map[string]row{
		"in sync": {func(*Found) {}, nil},
		"same version, new digest": {
			made("id-old", "- recast.lock="+clustertest.OldHash+"\n"),
			[]cluster.Reason{{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb", Old: "sha256:aaaaaaaaaaaaaaaa", New: "sha256:bbbbbbbbbbbbbbbb"}},
		},
		"an unknown lock": {
			made("id-old", "- recast.lock=sha256-other\n"),
			[]cluster.Reason{{Code: "lock", Text: "extensions of another lock: sha256-other → sha256-new", Old: "sha256-other", New: "sha256-new"}},
		},
		"another schematic": {
			func(f *Found) { f.Machine.Schematic.ID = "id-old" },
			[]cluster.Reason{{Code: "schematic", Text: "schematic id-old → id-new", Old: "id-old", New: "id-new"}},
		},
		"not locked by recast": {
			made("id-new", "customization: {}\n"),
			[]cluster.Reason{{Code: "unknown-build", Text: "its schematic was not locked by recast: extension digests unknown", Old: "id-new", New: "id-new"}},
		},
		"no schematic at all": {made("", ""), []cluster.Reason{{Code: "unknown-build", Text: "its image carries no schematic: what it was built from is unknown", New: "b1"}}},
		"older Talos": {
			func(f *Found) { f.Machine.TalosVersion = "v1.13.8" },
			[]cluster.Reason{{Code: "talos-version", Text: "Talos v1.13.8 → v1.13.9", Old: "v1.13.8", New: "v1.13.9"}},
		},
		"made for another machine": {
			func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "arm64", "metal", new(true) },
			[]cluster.Reason{
				{Code: "arch", Text: "architecture arm64 → amd64", Old: "arm64", New: "amd64"},
				{Code: "platform", Text: "platform metal → nocloud", Old: "metal", New: "nocloud"},
				{Code: "secure-boot", Text: "Secure Boot on → off", Old: "on", New: "off"},
			},
		},
		"it does not say for which machine": {func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "", "", nil }, nil},
		"extensions by name and version": {
			func(f *Found) {
				f.Machine.Extensions = []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.1.0"}, {Name: "zfs", Version: "2.3"}}
			},
			[]cluster.Reason{
				{Code: "extension-version", Text: "extension iscsi-tools v0.1.0 → v0.2.0", Old: "v0.1.0", New: "v0.2.0"},
				{Code: "extension-extra", Text: "extension zfs 2.3 is not in the schematic", Old: "2.3"},
			},
		},
		"extension missing": {
			func(f *Found) { f.Machine.Extensions = nil },
			[]cluster.Reason{{Code: "extension-missing", Text: "extension iscsi-tools v0.2.0 is missing", New: "v0.2.0"}},
		},
		"boot ISO left in": {
			func(f *Found) { f.VM.Config["ide2"] = "isos:iso/recast-v1-b.iso,media=cdrom" },
			[]cluster.Reason{{Code: "boot-media", Text: "boot ISO recast-v1-b.iso is still in ide2", Old: "recast-v1-b.iso"}},
		},
		"a user's own ISO stays": {func(f *Found) { f.VM.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil},
		"unfinished": {
			func(f *Found) {
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Name: "p", Host: "pve1"}, Record: parking.Record{Run: "r1", Open: true}}
			},
			[]cluster.Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
		},
	}, func(t *testing.T, tc row) {
		m := clustertest.InSync()
		f := Found{Name: "wk1", Machine: &m, VM: &cluster.VM{ID: 9011, Config: map[string]string{"ide2": "none,media=cdrom"}}}
		tc.change(&f)
		got := Diff(cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}, f, clustertest.Past)
		must.Equal(t, "got", tc.want, got.Reasons)
		must.Equal(t, "stale", len(tc.want) > 0, got.Stale)
	})
}

// TestDiffNamesAllOfAnImage: a digest that changed hides nothing else.
func TestDiffNamesAllOfAnImage(t *testing.T) {
	t.Parallel()
	made := func(id, yaml string) cluster.SchematicEntry { return cluster.SchematicEntry{ID: id, YAML: yaml} }
	for name, tc := range map[string]struct {
		runs cluster.SchematicEntry
		want []cluster.Reason
	}{
		"a digest, an argument, META and an overlay at once": {
			made("id-old", "overlay: {name: rpi, image: sbc}\ncustomization:\n  extraKernelArgs:\n  - mitigations=off\n  - recast.lock="+clustertest.OldHash+"\n  meta: [{key: 12, value: a}]\n"),
			[]cluster.Reason{
				{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb", Old: "sha256:aaaaaaaaaaaaaaaa", New: "sha256:bbbbbbbbbbbbbbbb"},
				{Code: "kernel-argument", Text: "kernel argument mitigations=off is not in the schematic", Old: "mitigations=off"},
				{Code: "meta", Text: "META value 0xc a is not in the schematic", Old: "a"},
				{Code: "overlay", Text: "image of the overlay sbc is not in the schematic", Old: "sbc"},
				{Code: "overlay", Text: "overlay rpi is not in the schematic", Old: "rpi"},
			},
		},
		"a schematic that can't be read": {
			made("id-old", "- recast.lock="+clustertest.NewHash+"\n"),
			[]cluster.Reason{{Code: "schematic", Text: "its schematic can't be compared with the lock's: not in the Image Factory's format", Old: "id-old", New: "id-new"}},
		},
	} {
		m, b := clustertest.InSync(), clustertest.WantedBuild()
		m.Schematic = tc.runs
		b.Schematic = cluster.Secret("customization: {extraKernelArgs: ['recast.lock=" + clustertest.NewHash + "']}")
		must.Equal(t, name, tc.want, Diff(cluster.Wanted{Name: "wk1", Build: b}, Found{Name: "wk1", Machine: &m}, clustertest.Past).Reasons)
	}
}

// TestDiffNamesEachPart: each part of an image that differs is named, alone and beside each other one, and nothing else is.
func TestDiffNamesEachPart(t *testing.T) {
	t.Parallel()
	overlay := cluster.LockedOverlay{Name: "rpi", Digest: "sha256:bbbbbbbbbbbbbbbb"}
	wanted := clustertest.WantedBuild()
	wanted.Overlay = overlay
	wanted.Extensions = append(wanted.Extensions, cluster.LockedExtension{Name: "agent", Version: "v1", Digest: "sha256:1111111111111111"})
	wanted.Schematic = cluster.Secret("overlay: {name: rpi, image: sbc}\ncustomization:\n  extraKernelArgs:\n  - quiet\n  - recast.lock=" + clustertest.NewHash + "\n  meta: [{key: 12, value: a}]\n  bootloader: sd-boot\n")
	parts := []struct {
		code   string
		change func(found *found)
	}{
		{"talos-version", func(f *found) { f.m.TalosVersion = "v1.13.8" }},
		{"extension-digest", func(f *found) { f.past.Extensions[1].Digest = "sha256:2222222222222222" }},
		{"extension-version", func(f *found) { f.m.Extensions[1].Version = "v0" }},
		{"extension-missing", func(f *found) { f.m.Extensions, f.past.Extensions = f.m.Extensions[1:], f.past.Extensions[1:] }},
		{"extension-extra", func(f *found) {
			f.m.Extensions = append(f.m.Extensions, cluster.ExtensionEntry{Name: "zfs", Version: "2.3"})
			f.past.Extensions = append(f.past.Extensions, cluster.LockedExtension{Name: "zfs", Version: "2.3", Digest: "sha256:3333333333333333"})
		}},
		{"kernel-argument", func(f *found) { f.text = strings.Replace(f.text, "quiet", "loud", 1) }},
		{"overlay-digest", func(f *found) { f.past.Overlay.Digest = "sha256:4444444444444444" }},
		{"overlay", func(f *found) {
			f.past.Overlay.Name, f.text = "other", strings.Replace(f.text, "name: rpi", "name: other", 1)
		}},
		{"rebuild", func(f *found) { f.past.Rebuild = 2 }},
		{"meta", func(f *found) { f.text = strings.Replace(f.text, "value: a", "value: b", 1) }},
		{"embedded-config", func(f *found) { f.text += "  embeddedMachineConfiguration: hush\n" }},
		{"bootloader", func(f *found) { f.text = strings.Replace(f.text, "sd-boot", "grub", 1) }},
		{"secure-boot", func(f *found) { f.m.SecureBoot = new(true) }},
		{"arch", func(f *found) { f.m.Arch = "arm64" }},
		{"platform", func(f *found) { f.m.Platform = "metal" }},
	}
	codes := func(changes ...func(*found)) []string {
		m := clustertest.InSync()
		f := found{m: &m, text: string(wanted.Schematic), past: cluster.LockedContent{Extensions: slices.Clone(wanted.Extensions), Overlay: overlay}}
		m.Extensions = []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}, {Name: "agent", Version: "v1"}}
		for _, change := range changes {
			change(&f)
		}
		was := f.past
		id := "id-new"
		if diff := cmp.Diff(was, cluster.LockedContent{Extensions: wanted.Extensions, Overlay: overlay}); diff != "" {
			f.text = strings.Replace(f.text, clustertest.NewHash, clustertest.OldHash, 1) // as the lock makes it
		}
		if f.text != string(wanted.Schematic) {
			id = "id-old"
		}
		m.Schematic = cluster.SchematicEntry{ID: id, YAML: f.text}
		var out []string
		for _, r := range Diff(cluster.Wanted{Name: "wk1", Build: wanted}, Found{Name: "wk1", Machine: &m}, func(hash string) (cluster.LockedContent, bool) { return was, hash == clustertest.OldHash }).Reasons {
			out = append(out, r.Code)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	for i, a := range parts {
		must.Equal(t, "codes", []string{a.code}, codes(a.change))
		for _, b := range parts[i+1:] {
			want := []string{a.code, b.code}
			if a.code == "overlay-digest" && b.code == "overlay" {
				want = []string{b.code} // of another overlay, the digest says nothing more
			}
			slices.Sort(want)
			must.Equal(t, "codes", want, codes(a.change, b.change))
		}
	}
}

// found is a running image, and what its lock says.
type found struct {
	m    *cluster.Machine
	text string // of its schematic
	past cluster.LockedContent
}

func TestDiffKeepsUnreadApartFromStale(t *testing.T) {
	t.Parallel()
	d := Diff(cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}, Found{Errs: []error{errors.New("no answer")}}, clustertest.Past)
	must.Equal(t, "stale", []any{false, 1}, []any{d.Stale, len(d.Unread)})
}

func TestDriftWithFiles(t *testing.T) {
	t.Parallel()
	const good, evil = "sha256:600d600d600d600d", "sha256:e711e711e711e711"
	d := Drift{Node: "wk1"}
	same := d.WithFiles(FileCheck{Files: 3, Bytes: 9, NotCompared: []string{"x"}}, nil)
	must.Equal(t, "the same", Drift{Node: "wk1", Notes: []string{"3 files of its extensions compared (9 bytes read): all are as locked", "not compared: x"}}, same)
	other := d.WithFiles(FileCheck{Files: 3, Bytes: 9, More: 2, Differ: []FileDiff{
		{Path: "/usr/local/a", Extension: "tool v1", Found: evil, Wanted: good},
	}}, nil)
	want := Drift{
		Node: "wk1", Stale: true, Notes: []string{"3 files of its extensions compared (9 bytes read): 3 differ"},
		Reasons: []cluster.Reason{
			{Code: "extension-file", Text: "/usr/local/a of extension tool v1: " + words.Short(evil) + " → " + words.Short(good), Old: evil, New: good},
			{Code: "extension-file", Text: "2 more files of extensions are not as locked"},
		},
	}
	must.Equal(t, "other", want, other)
	got := d.WithFiles(FileCheck{}, errors.New("no answer"))
	must.Equal(t, "stale, unread", []any{false, []string{"no answer"}}, []any{got.Stale, got.Unread})
}

// TestStuckVolumesAreSaid at any time: what failed while the machine starts, too, but not what waits then.
func TestStuckVolumesAreSaid(t *testing.T) {
	t.Parallel()
	m := cluster.Machine{VolumeStatuses: []cluster.VolumeStatus{
		{ID: "EPHEMERAL", Phase: "failed", Error: "block dev type mismatch: xfs != luks"},
		{ID: "STATE", Phase: "failed", Error: "no such attribute(s): system_disk"},
		{ID: "u-data", Phase: "waiting"},
		{ID: "e-backup", Phase: "missing"},
		{ID: "META", Phase: "missing"},
	}}
	for stage, want := range map[string]string{
		"running": "EPHEMERAL STATE u-data e-backup",
		"booting": "EPHEMERAL",
	} {
		m.Stage = stage
		var got []string
		for _, text := range stuckVolumes(m) {
			id, _, _ := strings.Cut(strings.TrimPrefix(text, "its volume "), " ")
			got = append(got, id)
		}
		must.Equal(t, stage, want, strings.Join(got, " "))
	}
}

func TestHostnameOfAnotherNode(t *testing.T) {
	t.Parallel()
	wanted := []cluster.Wanted{{Name: "wk1"}, {Name: "wk2"}}
	for hostname, want := range map[string]string{"": "", "wk1": "", "WK1.example.com": "", "wk2": "wk2", "Wk2.example.com": "wk2", "else": ""} {
		must.Equal(t, hostname, want, otherNode(hostname, "wk1", wanted))
	}
}

func TestNoAddress(t *testing.T) {
	t.Parallel()
	f := Found{Name: "wk1"}
	ReadMachine(t.Context(), Sources{}, nil, cluster.Wanted{Name: "wk1"}, &f)
	if len(f.Errs) != 1 || !strings.Contains(clustertest.Message(f.Errs[0]), "no address known") {
		t.Fatalf("%v", f.Errs)
	}
	must.Contain(t, "hints", strings.Join(fault.Hints(f.Errs[0]), "\n"), "kubectl get node wk1")
}

// TestRunsFromISO: nothing else shows an interrupted installation.
func TestRunsFromISO(t *testing.T) {
	t.Parallel()
	m := clustertest.InSync()
	m.FromISO, m.BootEntry = true, ""
	for stage, want := range map[string]bool{"booting": true, "installing": true, "rebooting": true, "running": false} {
		m.Stage = stage
		must.Equal(t, stage, want, m.IsBeingInstalled())
	}
	reasons := cluster.DiffInstalled(clustertest.WantedBuild(), m.RunningSystem, "")
	if len(reasons) == 0 || reasons[0].Code != "boot-iso" || !rollable(reasons[0].Code) {
		t.Errorf("%+v", reasons)
	}
}

// rolledNode is a node as a finished roll leaves it.
func rolledNode() (cluster.Wanted, Found) {
	m := clustertest.InSync()
	m.SystemDisk = "sda"
	m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "sys"}}
	m.BootEntry, m.NextBoot = "talos-v1.13.9.efi", "talos-v1.13.9.efi"
	b := clustertest.WantedBuild()
	b.Installer = "mirror.example/talos/installer@sha256:cccc"
	m.InstallImage = b.Installer
	vm := cluster.VM{ID: 9011, Name: "wk1", Host: "pve1", Config: map[string]string{
		"scsi0": "fast:vm-9011-disk-0,serial=sys,size=10G", "ide2": "none,media=cdrom", "boot": "order=scsi0;ide2;net0",
	}}
	w := cluster.Wanted{Name: "wk1", Build: b, Kubernetes: "v1.35.4", SystemGiB: 10}
	return w, Found{Name: "wk1", VM: &vm, Machine: &m, Node: &cluster.KubeNode{Name: "wk1", KubeletVersion: "v1.35.4"}}
}

func TestDiffOfBootAndNode(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*cluster.Wanted, *Found)
		want   []cluster.Reason
		notes  []string
	}
	must.Each(t, map[string]row{
		"as rolled":     {func(*cluster.Wanted, *Found) {}, nil, nil},
		"no boot order": {func(_ *cluster.Wanted, f *Found) { delete(f.VM.Config, "boot") }, nil, nil},
		"legacy order":  {func(_ *cluster.Wanted, f *Found) { f.VM.Config["boot"] = "cdn" }, nil, nil},
		"CD first": {
			func(_ *cluster.Wanted, f *Found) { f.VM.Config["boot"] = "order=ide2;scsi0" },
			[]cluster.Reason{{Code: "boot-order", Text: "it boots from ide2 before its system disk scsi0 (only recreate or reimage mends that)", Old: "ide2", New: "scsi0"}},
			nil,
		},
		"unproven system disk": {
			func(_ *cluster.Wanted, f *Found) { f.Machine.SystemDisk, f.VM.Config["boot"] = "", "order=ide2;scsi0" }, nil,
			[]string{`VM 9011 "wk1" on pve1: system disk can't be proven: the machine does not name it`},
		},
		"small system disk": {
			func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 16 },
			[]cluster.Reason{{Code: "system-disk-size", Text: "system disk scsi0: 10G → 16G (only recreate or reimage mends that)", Old: "10G", New: "16G"}},
			nil,
		},
		"large system disk": {
			func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 8 }, nil,
			[]string{"system disk scsi0 has 10G, more than the 8G wanted: recast never makes one smaller"},
		},
		"any size": {func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 0 }, nil, nil},
		"not rebooted yet": {
			func(_ *cluster.Wanted, f *Found) { f.Machine.NextBoot = "talos-v1.14.0.efi" },
			[]cluster.Reason{{
				Code: "pending-reboot", Text: "talos-v1.14.0.efi is installed, but talos-v1.13.9.efi is running: the next reboot starts the other system",
				Old: "talos-v1.13.9.efi", New: "talos-v1.14.0.efi",
			}},
			nil,
		},
		"next boot unknown": {func(_ *cluster.Wanted, f *Found) { f.Machine.NextBoot = "" }, nil, nil},
		"Kubernetes": {
			func(w *cluster.Wanted, _ *Found) { w.Kubernetes = "v1.36.0" },
			[]cluster.Reason{{Code: "kubernetes-version", Text: "Kubernetes v1.35.4 → v1.36.0", Old: "v1.35.4", New: "v1.36.0"}},
			nil,
		},
		"any Kubernetes": {func(w *cluster.Wanted, _ *Found) { w.Kubernetes = "" }, nil, nil},
		"a mark": {
			func(_ *cluster.Wanted, f *Found) { f.Node.Mark = &cluster.Mark{Run: "r1", Strategy: cluster.InPlace} },
			[]cluster.Reason{{Code: "cordoned", Text: "run r1 cordoned it to roll it in-place and did not finish", Old: "r1"}},
			nil,
		},
		"a user's cordon": {func(_ *cluster.Wanted, f *Found) { f.Node.Unschedulable = true }, nil, nil},
		"a mark of an open replacement": {
			func(_ *cluster.Wanted, f *Found) {
				f.Node.Mark = &cluster.Mark{Run: "r1"}
				f.VM.Config["boot"] = "order=ide2;scsi0"
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Name: "p", Host: "pve1"}, Record: parking.Record{Run: "r1", Open: true}}
			},
			[]cluster.Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
			nil,
		},
	}, func(t *testing.T, tc row) {
		w, f := rolledNode()
		tc.change(&w, &f)
		got := Diff(w, f, clustertest.Past)
		must.Equal(t, "got", tc.want, got.Reasons)
		must.Equal(t, "got", tc.notes, got.Notes)
	})
}

func TestDiffOfTheInstallImage(t *testing.T) {
	t.Parallel()
	const pinned = "mirror.example/talos/installer@sha256:cccc"
	for name, tc := range map[string]struct {
		image, installer, want string // want: the reason's text
	}{
		"the digest":                   {pinned, pinned, ""},
		"the digest elsewhere":         {"factory.talos.dev/metal-installer/id-new@sha256:cccc", pinned, ""},
		"tag and digest":               {"mirror.example/talos/installer:v1@sha256:cccc", pinned, ""},
		"another digest":               {"mirror.example/talos/installer@sha256:dddd", pinned, "install image of its configuration: mirror.example/talos/installer@sha256:dddd → " + pinned},
		"the factory's tag":            {"factory.talos.dev/nocloud-installer/id-new:v1.13.9", pinned, ""},
		"the factory's tag, not built": {"factory.talos.dev/nocloud-installer/id-new:v1.13.9", "", ""},
		"another version":              {"factory.talos.dev/nocloud-installer/id-new:v1.13.8", "", "install image of its configuration: factory.talos.dev/nocloud-installer/id-new:v1.13.8 → id-new:v1.13.9"},
		"another schematic":            {"factory.talos.dev/nocloud-installer/id-old:v1.13.9", pinned, "install image of its configuration: factory.talos.dev/nocloud-installer/id-old:v1.13.9 → " + pinned},
		"the bare installer":           {"ghcr.io/siderolabs/installer:v1.13.9", pinned, "install image of its configuration: ghcr.io/siderolabs/installer:v1.13.9 → " + pinned},
		"a digest, not built":          {"mirror.example/talos/installer@sha256:dddd", "", ""},
		"not read":                     {"", pinned, ""},
	} {
		w, f := rolledNode()
		w.Build.Installer, f.Machine.InstallImage = tc.installer, tc.image
		var text strings.Builder
		for _, r := range Diff(w, f, clustertest.Past).Reasons {
			must.Equal(t, name, "install-image", r.Code)
			text.WriteString(r.Text)
		}
		must.Equal(t, name, tc.want, text.String())
	}
}

// TestDiffOfTheInstallImageUnused: no installer has run on a disk that was made from a disk image.
func TestDiffOfTheInstallImageUnused(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	f.Machine.InstallImage, f.Machine.FromImage = "ghcr.io/siderolabs/installer:v1.13.8", true
	reasons := Diff(w, f, clustertest.Past).Reasons
	if len(reasons) != 1 || !strings.HasSuffix(reasons[0].Text, " (its system disk was made from a disk image: only a machine that is reset would install that)") {
		t.Errorf("%+v", reasons)
	}
}

// TestDiffOfAHiddenConfiguration: what a talosconfig may not read is noted, and is no drift.
func TestDiffOfAHiddenConfiguration(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	f.Machine.ConfigHidden = true
	d := Diff(w, f, clustertest.Past)
	if d.Stale || len(d.Unread) > 0 || !slices.ContainsFunc(d.Notes, func(note string) bool {
		return strings.HasPrefix(note, "not compared, for it takes a talosconfig with the role os:admin: its machine configuration")
	}) {
		t.Errorf("%+v", d)
	}
}

func TestKubernetesVersionIsNotForARoll(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	w.Kubernetes = "v1.36.0"
	d := Diff(w, f, clustertest.Past)
	if !d.Stale || d.Rollable() || rollable("kubernetes-version") || !rollable("talos-version") {
		t.Errorf("a roll can do something about %+v", d)
	}
	f.Machine.TalosVersion = "v1.13.8"
	must.Equal(t, "a roll can renew an old Talos", true, Diff(w, f, clustertest.Past).Rollable())
}
