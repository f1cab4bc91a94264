package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// Reason is one way in which a node differs from what is wanted.
type Reason struct {
	Code string `json:"code"` // stable for scripts: "extension-digest", "talos-version", …
	Text string `json:"text"` // for people
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// Drift is how one node stands. A node that could not be read is neither stale
// nor in sync: Unread says why.
type Drift struct {
	Node    string   `json:"node"`
	Stale   bool     `json:"stale"`
	Reasons []Reason `json:"reasons,omitempty"`
	Notes   []string `json:"notes,omitempty"` // kept on purpose, or worth knowing
	Unread  []string `json:"unread,omitempty"`
	Build   string   `json:"build"` // wanted build ID
	Talos   string   `json:"talos"` // version found, "" if unread
}

// History gives the extensions that a lock hash ("sha256-…") stands for, of the
// current lock or a past one; known is false for a hash that no lock of ours has.
type History func(lockHash string) (extensions []LockedExtension, known bool)

// rollable says whether a roll brings what the code of a reason stands for to
// what is wanted. Kubernetes is upgraded by recast upgrade-k8s.
func rollable(code string) bool { return code != kubernetesVersion }

// Rollable says whether a roll has anything to do to the node.
func (d Drift) Rollable() bool {
	return slices.ContainsFunc(d.Reasons, func(r Reason) bool { return rollable(r.Code) })
}

// Diff compares one node with what is wanted of it.
func Diff(w Wanted, f Found, past History) Drift {
	d := Drift{Node: w.Name, Build: w.Build.ID}
	for _, err := range f.Errs {
		d.Unread = append(d.Unread, err.Error())
	}
	if f.Open() {
		d.Reasons = append(d.Reasons, Reason{
			Code: "unfinished",
			Text: fmt.Sprintf("its replacement by run %s is not finished; disks may be on %s", f.Parking.Record.Run, f.Parking.VM),
		})
	}
	if f.Machine != nil {
		d.Talos = f.Machine.TalosVersion
		d.Reasons = append(d.Reasons, DiffImage(w.Build, *f.Machine, past)...)
		if len(d.Reasons) == 0 { // another image brings its own installer
			d.Reasons = append(d.Reasons, DiffInstalled(w.Build, *f.Machine)...)
		}
	}
	d.Notes = append(d.Notes, f.Unsupported...)
	if m := f.Machine; m != nil && len(m.Unmet) > 0 {
		d.Notes = append(d.Notes, "its machine is not well: "+m.Standing())
	}
	if f.Machine != nil && f.Machine.ConfigHidden {
		d.Notes = append(d.Notes, "not compared, for it takes a talosconfig with the role os:admin: the install image of its configuration, a system that waits for a reboot")
	}
	if why := f.Pause(); why != "" {
		d.Notes = append(d.Notes, "paused: "+why+": a roll leaves it as it is")
	}
	if f.Node != nil {
		d.Reasons = append(d.Reasons, diffNode(w, f)...)
	}
	if f.VM != nil && !f.Open() {
		reasons, notes := diffVM(w, f)
		d.Reasons, d.Notes = append(d.Reasons, reasons...), append(d.Notes, notes...)
	}
	if f.Parking != nil {
		d.Reasons = append(d.Reasons, diffKept(*f.Parking)...)
	}
	for _, p := range f.Parkings() {
		for _, kept := range p.Record.Kept {
			what := "previous system disk"
			if kept.GivenUp {
				what = "system disk that was given up"
			}
			d.Notes = append(d.Notes, fmt.Sprintf("%s is parked as %s of %s (run %s)", what, kept.Key, p.VM, kept.Run))
		}
	}
	d.Stale = len(d.Reasons) > 0
	return d
}

func DiffImage(b Build, m Machine, past History) []Reason {
	var out []Reason
	if m.TalosVersion != b.TalosVersion {
		out = append(out, Reason{"talos-version", fmt.Sprintf("Talos %s → %s", m.TalosVersion, b.TalosVersion), m.TalosVersion, b.TalosVersion})
	}
	out = append(out, DiffTarget(b, m)...)
	found := m.Schematic.LockHash()
	switch {
	case m.Schematic.ID == "":
		out = append(out, Reason{Code: "unknown-build", Text: "its image carries no schematic: nobody can tell what it was built from", New: b.ID})
	case found == "":
		out = append(out, Reason{"unknown-build", "its schematic was not locked by recast: extension digests unknown", m.Schematic.ID, b.SchematicID})
	case found != b.LockHash:
		out = append(out, diffDigests(b, found, past)...)
	case m.Schematic.ID != b.SchematicID:
		out = append(out, Reason{"schematic", fmt.Sprintf("schematic %s → %s", words.Short(m.Schematic.ID), words.Short(b.SchematicID)), m.Schematic.ID, b.SchematicID})
	}
	return append(out, DiffExtensions(b, m)...)
}

// DiffTarget compares what an image is made for, of which the schematic says nothing.
func DiffTarget(b Build, m Machine) []Reason {
	var out []Reason
	if m.Arch != "" && m.Arch != b.Arch {
		out = append(out, Reason{"arch", fmt.Sprintf("architecture %s → %s", m.Arch, b.Arch), m.Arch, b.Arch})
	}
	if m.Platform != "" && m.Platform != b.Platform {
		out = append(out, Reason{"platform", fmt.Sprintf("platform %s → %s", m.Platform, b.Platform), m.Platform, b.Platform})
	}
	if m.SecureBoot != nil && *m.SecureBoot != b.SecureBoot {
		was, is := OnOff(*m.SecureBoot), OnOff(b.SecureBoot)
		out = append(out, Reason{"secure-boot", fmt.Sprintf("Secure Boot %s → %s", was, is), was, is})
	}
	return out
}

func OnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// diffDigests names the extensions whose digest moved, where a past lock tells what the found hash stands for.
func diffDigests(b Build, found string, past History) []Reason {
	old, known := past(found)
	if !known {
		return []Reason{{"lock", fmt.Sprintf("extensions of another lock: %s → %s", words.Short(found), words.Short(b.LockHash)), found, b.LockHash}}
	}
	var out []Reason
	for _, e := range b.Extensions {
		i := slices.IndexFunc(old, func(o LockedExtension) bool { return o.Name == e.Name })
		if i < 0 || old[i].Digest == e.Digest {
			continue // an added extension shows by its name
		}
		out = append(out, Reason{
			"extension-digest",
			fmt.Sprintf("extension %s %s: %s → %s", e.Name, e.Version, words.Short(old[i].Digest), words.Short(e.Digest)), old[i].Digest, e.Digest,
		})
	}
	if len(out) == 0 {
		out = append(out, Reason{"lock", fmt.Sprintf("extensions of another lock: %s → %s", words.Short(found), words.Short(b.LockHash)), found, b.LockHash})
	}
	return out
}

// ConfigEntry is what imager adds to the list of extensions for a machine
// configuration that the schematic embeds (pkg/imager/embed.go of Talos).
const ConfigEntry = "embedded-config"

func DiffExtensions(b Build, m Machine) []Reason {
	want, have := map[string]string{}, map[string]string{}
	for _, e := range b.Extensions {
		want[e.Name] = e.Version
	}
	for _, e := range m.Extensions {
		if e.Name == ConfigEntry && b.EmbedsConfig {
			continue
		}
		have[e.Name] = e.Version
	}
	names := maps.Clone(want)
	maps.Copy(names, have)
	var out []Reason
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, wanted := want[name]
		h, found := have[name]
		switch {
		case !found:
			out = append(out, Reason{Code: "extension-missing", Text: fmt.Sprintf("extension %s %s is missing", name, w), New: w})
		case !wanted:
			out = append(out, Reason{Code: "extension-extra", Text: fmt.Sprintf("extension %s %s is not in the schematic", name, h), Old: h})
		case w != h && w != "":
			out = append(out, Reason{"extension-version", fmt.Sprintf("extension %s %s → %s", name, h, w), h, w})
		}
	}
	return out
}

// BootISO tells a boot ISO of recast by its name.
func BootISO(d Disk) (name string, ok bool) {
	_, path, _ := strings.Cut(d.Volid, ":")
	name = path[strings.LastIndex(path, "/")+1:]
	return name, d.CDROM && strings.HasPrefix(name, "recast-") && strings.HasSuffix(name, ".iso")
}

// LockArg is the kernel argument by which a schematic carries the hash of its extension digests.
const LockArg = "recast.lock="

// LockHash is the lock that the image was built from, as its schematic states
// it: "sha256-…", or "" where recast did not lock it. The kernel's own command
// line is no evidence: GRUB drops schematic arguments on an upgrade.
func (s SchematicEntry) LockHash() string {
	for field := range strings.FieldsSeq(s.YAML) {
		if hash, ok := strings.CutPrefix(strings.Trim(field, `"'`), LockArg); ok {
			return hash
		}
	}
	return ""
}
