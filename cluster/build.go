package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/words"
)

// Reason is one way in which a node differs from what is wanted.
type Reason struct {
	Code string `json:"code"` // stable for scripts: "extension-digest", "talos-version", …
	Text string `json:"text"` // for people
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// History returns what a lock hash ("sha256-…") stands for, in the current lock or a past one. known is
// false for a hash that is in none of our locks.
type History func(lockHash string) (content LockedContent, known bool)

// DiffImage compares the image that a machine runs with a build.
func DiffImage(b Build, m RunningSystem, past History) []Reason {
	var out []Reason
	if m.TalosVersion != b.TalosVersion {
		out = append(out, Reason{"talos-version", fmt.Sprintf("Talos %s → %s", m.TalosVersion, b.TalosVersion), m.TalosVersion, b.TalosVersion})
	}
	out = append(out, DiffTarget(b, m)...)
	extensions := DiffExtensions(b, m)
	if m.Schematic.ID == "" {
		out = append(out, Reason{Code: "unknown-build", Text: "its image carries no schematic: what it was built from is unknown", New: b.ID})
	} else {
		out = append(out, diffSchematic(b, m.Schematic, past, len(extensions) > 0)...)
	}
	return append(out, extensions...)
}

// diffSchematic names what differs between the schematic that an image states and the build's; byName says that
// extensions differ by name or version, which the caller lists.
func diffSchematic(b Build, s SchematicEntry, past History, byName bool) []Reason {
	var out []Reason
	found := s.LockHash()
	switch {
	case found == "":
		out = append(out, Reason{"unknown-build", "its schematic was not locked by recast: extension digests unknown", s.ID, b.SchematicID})
	case found != b.LockHash:
		out = diffDigests(b, found, past)
	}
	if s.ID == b.SchematicID {
		return out
	}
	changes, err := b.Asked(s)
	if err != nil {
		return append(out, Reason{"schematic", fmt.Sprintf("its schematic can't be compared with the lock's: %v", err), s.ID, b.SchematicID})
	}
	for _, c := range changes {
		out = append(out, Reason{c.Code, c.String(), c.Old, c.New})
	}
	if len(out) == 0 && !byName {
		out = append(out, Reason{"schematic", fmt.Sprintf("schematic %s → %s", words.Short(s.ID), words.Short(b.SchematicID)), s.ID, b.SchematicID})
	}
	return out
}

// Asked lists how the build's schematic differs from the one that an image states, but for its extensions.
func (b Build) Asked(s SchematicEntry) ([]config.SchematicChange, error) {
	if b.Schematic == nil || s.ID == b.SchematicID {
		return nil, nil
	}
	found, errFound := config.ParseSchematic(s.YAML)
	wanted, errWanted := config.ParseSchematic(string(b.Schematic))
	if err := errors.Join(errFound, errWanted); err != nil {
		return nil, err
	}
	return config.CompareSchematics(found, wanted), nil
}

// DiffTarget compares what the schematic does not state: architecture, platform and Secure Boot.
func DiffTarget(b Build, m RunningSystem) []Reason {
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

// OnOff is "on" or "off".
func OnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// diffDigests names what the two hashes stand for, if a past lock has the found one.
func diffDigests(b Build, found string, past History) []Reason {
	old, known := past(found)
	var out []Reason
	if known {
		out = diffContent(old, b)
	}
	if len(out) > 0 || known && (old.Overlay.Name != b.Overlay.Name || !sameNames(old.Extensions, b.Extensions)) {
		return out // what came or went is compared by name
	}
	what := "extensions of another lock"
	switch {
	case known:
		what = "the same extensions, built otherwise" // in another order, or from recast.yaml instead of by the factory
	case b.Overlay.Name != "":
		what = "extensions or an overlay of another lock"
	}
	return []Reason{{"lock", fmt.Sprintf("%s: %s → %s", what, words.Short(found), words.Short(b.LockHash)), found, b.LockHash}}
}

// diffContent names the extensions whose digest changed, another overlay, and a rebuild.
func diffContent(old LockedContent, b Build) []Reason {
	var out []Reason
	for _, e := range b.Extensions {
		i := slices.IndexFunc(old.Extensions, func(o LockedExtension) bool { return o.Name == e.Name })
		if i < 0 || old.Extensions[i].Digest == e.Digest {
			continue
		}
		was := old.Extensions[i].Digest
		out = append(out, Reason{
			"extension-digest", fmt.Sprintf("extension %s %s: %s → %s", e.Name, e.Version, words.Short(was), words.Short(e.Digest)), was, e.Digest,
		})
	}
	if was, is := old.Overlay, b.Overlay; was.Name == is.Name && was != is {
		out = append(out, Reason{
			"overlay-digest", fmt.Sprintf("overlay %s: %s → %s", is.Name, words.Short(was.Digest), words.Short(is.Digest)), was.Digest, is.Digest,
		})
	}
	if old.Rebuild != b.Rebuild {
		was, is := fmt.Sprint(old.Rebuild), fmt.Sprint(b.Rebuild)
		out = append(out, Reason{"rebuild", fmt.Sprintf("rebuilds of the same content: %s → %s", was, is), was, is})
	}
	return out
}

// sameNames says whether two lists have extensions of the same names, in any order.
func sameNames(a, b []LockedExtension) bool {
	names := func(list []LockedExtension) []string {
		var out []string
		for _, e := range list {
			out = append(out, e.Name)
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(names(a), names(b))
}

// ConfigEntry is the entry that imager adds to the list of extensions if the schematic embeds a
// machine configuration (pkg/imager/embed.go of Talos).
const ConfigEntry = "embedded-config"

// DiffExtensions compares the extensions of a machine with those of a build, by name and version.
func DiffExtensions(b Build, m RunningSystem) []Reason {
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

// BootISO says whether a drive holds a boot ISO of recast, and returns the ISO's file name.
func BootISO(d Disk) (name string, ok bool) {
	_, path, _ := strings.Cut(d.Volid, ":")
	name = path[strings.LastIndex(path, "/")+1:]
	return name, d.CDROM && strings.HasPrefix(name, "recast-") && strings.HasSuffix(name, ".iso")
}

// LockArg is the kernel argument in which a schematic carries the hash of its extension digests.
const LockArg = config.LockArg

// LockHash returns the lock hash that the image's schematic states, "sha256-…"; "" if recast did
// not lock it. The running kernel's command line is no evidence: GRUB drops schematic arguments on
// an upgrade.
func (s SchematicEntry) LockHash() string {
	for field := range strings.FieldsSeq(s.YAML) {
		if hash, ok := strings.CutPrefix(strings.Trim(field, `"'`), LockArg); ok {
			return hash
		}
	}
	return ""
}

// IsBeingInstalled says whether the machine may still leave its boot ISO by itself. After an
// interrupted installation its stage is "running".
func (m Machine) IsBeingInstalled() bool { return m.FromISO && m.Stage != "running" }

// DiffInstalled compares what the machine would become without us: at its next boot, or when it is
// reinstalled from its own configuration.
func DiffInstalled(b Build, m RunningSystem, installImage string) []Reason {
	var out []Reason
	if m.FromISO {
		// The installation was interrupted. Nothing else shows it: the phase is "installed".
		out = append(out, Reason{Code: "boot-iso", Text: "it runs from its boot ISO, not from its system disk: its installation broke off, and it does not boot again by itself", Old: "ISO"})
	}
	if m.PendingReboot() {
		out = append(out, Reason{"pending-reboot", fmt.Sprintf("%s is installed, but %s is running: the next reboot starts the other system", m.NextBoot, m.BootEntry), m.BootEntry, m.NextBoot})
	}
	if installImage != "" && !b.installs(installImage) {
		want := cmp.Or(b.Installer, b.SchematicID+":"+b.TalosVersion)
		text := fmt.Sprintf("install image of its configuration: %s → %s", installImage, want)
		if m.FromImage {
			text += " (its system disk was made from a disk image: only a machine that is reset would install that)"
		}
		out = append(out, Reason{"install-image", text, installImage, want})
	}
	return out
}

// installs says whether an image reference is the build's installer: by digest, or by the factory's
// tag, where the repository is named after the schematic. Any digest matches while the build's own
// is unknown.
func (b Build) installs(image string) bool {
	_, digest, pinned := strings.Cut(image, "@")
	_, want, built := strings.Cut(b.Installer, "@")
	if pinned {
		return !built || digest == want
	}
	name := image[strings.LastIndex(image, "/")+1:]
	return name == b.SchematicID+":"+b.TalosVersion
}

// Title is the name and the version.
func (e LockedExtension) Title() string { return strings.TrimSpace(e.Name + " " + e.Version) }

// PreviousLock is a way back that needs no kept disk. recast refuses a lock that does not match
// recast.yaml and the schematics beside it.
const PreviousLock = "put the previous lock back, with what it is of (git checkout COMMIT -- recast.yaml recast.lock schematics/), and recast roll"
