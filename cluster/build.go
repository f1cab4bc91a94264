package cluster

import (
	"bytes"
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

// History returns the content of a lock hash ("sha256-…") of the current lock or a past one; known: a lock has it.
type History func(lockHash string) (content LockedContent, known bool)

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

// diffSchematic compares an image's schematic with the build's. byName: extensions differ by name or version.
func diffSchematic(b Build, s SchematicEntry, past History, byName bool) (out []Reason) {
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

// Asked lists how the build's schematic differs from the one that an image states, but for which extensions they have.
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

// DiffTarget compares architecture, platform and Secure Boot, which a schematic does not state.
func DiffTarget(b Build, m RunningSystem) (out []Reason) {
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

func OnOff(on bool) string { return map[bool]string{true: "on", false: "off"}[on] }

// diffDigests lists how the contents of the two lock hashes differ, if a past lock has the found hash.
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
		what = "the same extensions, built differently" // in another order, or from recast.yaml instead of by the factory
	case b.Overlay.Name != "":
		what = "extensions or an overlay of another lock"
	}
	return []Reason{{"lock", fmt.Sprintf("%s: %s → %s", what, words.Short(found), words.Short(b.LockHash)), found, b.LockHash}}
}

// diffContent lists changed digests of extensions and of an overlay of the same name, and a changed number of rebuilds.
func diffContent(old LockedContent, b Build) (out []Reason) {
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

func sameNames(a, b []LockedExtension) bool {
	names := func(list []LockedExtension) []string {
		out := Each(list, func(e LockedExtension) string { return e.Name })
		slices.Sort(out)
		return out
	}
	return slices.Equal(names(a), names(b))
}

// ConfigEntry is imager's entry in the list of extensions for an embedded configuration (pkg/imager/embed.go of Talos).
const ConfigEntry = "embedded-config"

// DiffExtensions compares the extensions of a machine with those of a build, by name and version.
func DiffExtensions(b Build, m RunningSystem) (out []Reason) {
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

// LockHash is the schematic's "sha256-…"; "": not recast's. GRUB drops arguments: the running cmdline proves nothing.
func (s SchematicEntry) LockHash() string {
	for field := range strings.FieldsSeq(s.YAML) {
		if hash, ok := strings.CutPrefix(strings.Trim(field, `"'`), LockArg); ok {
			return hash
		}
	}
	return ""
}

// IsBeingInstalled: the machine may still leave its boot ISO by itself. If that broke off, the stage is "running".
func (m Machine) IsBeingInstalled() bool { return m.FromISO && m.Stage != "running" }

// DiffInstalled compares the build with what the machine would become without recast, at its next boot or installation.
func DiffInstalled(b Build, m RunningSystem, installImage string) (out []Reason) {
	if m.FromISO {
		// The installation was interrupted. Nothing else shows it: the phase is "installed".
		out = append(out, Reason{Code: "boot-iso", Text: "it runs from its boot ISO, not from its system disk: its installation was interrupted, and it does not boot again by itself", Old: "ISO"})
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

// installs: an image is the build's installer, by digest (any while ours is unknown), or the factory's tag.
func (b Build) installs(image string) bool {
	_, digest, pinned := strings.Cut(image, "@")
	_, want, built := strings.Cut(b.Installer, "@")
	if pinned {
		return !built || digest == want
	}
	name := image[strings.LastIndex(image, "/")+1:]
	return name == b.SchematicID+":"+b.TalosVersion
}

func (e LockedExtension) Title() string { return strings.TrimSpace(e.Name + " " + e.Version) }

// PreviousLock says how to go back without a kept disk. recast refuses a lock that does not match what is beside it.
const PreviousLock = "restore the previous lock with its recast.yaml and schematics (git checkout COMMIT -- recast.yaml recast.lock schematics/), then recast roll"

// InstallArgs returns the kernel arguments for GRUB in the machine's configuration (extraKernelArgs) as named, and
// those that the kernel has as running. byImage: GRUB takes the image's instead (grubUseUKICmdline).
func (m Machine) InstallArgs() (named, running []string, byImage bool) {
	if !bytes.Contains(m.Configs.Active, []byte("extraKernelArgs")) {
		return nil, nil, false // each plan calls this for each node: parsing takes longer
	}
	docs, err := config.Parse(m.Configs.Active)
	if err != nil {
		return nil, nil, false // the comparison refuses such a configuration
	}
	named, byImage = docs.InstallArgs()
	named = slices.DeleteFunc(named, func(arg string) bool { return strings.HasPrefix(arg, "-") }) // "-name" removes an argument
	has := strings.Fields(string(m.Cmdline))
	return named, Where(named, func(arg string) bool { return slices.Contains(has, arg) }), byImage
}

// ArgsLost returns the arguments that the running kernel has from the configuration alone and the wanted image lacks.
// What the running image's schematic states is compared elsewhere. An argument of the wanted image replaces one of the
// same name, unless the kernel has that argument several times, for example console.
func (w Wanted) ArgsLost(m Machine) []string {
	_, running, _ := m.InstallArgs()
	if len(running) == 0 {
		return nil
	}
	image := m.Schematic.stated()
	times := map[string]int{}
	for arg := range strings.FieldsSeq(string(m.Cmdline)) {
		times[ArgName(arg)]++
	}
	return slices.DeleteFunc(running, func(arg string) bool {
		return slices.Contains(image.KernelArgs, arg) ||
			slices.ContainsFunc(w.Build.KernelArgs, func(has string) bool { return has == arg || times[ArgName(arg)] == 1 && ArgName(has) == ArgName(arg) })
	})
}

// DropsArgs says why a system that a strategy installs gets no kernel arguments from the configuration; "": it does.
func (w Wanted) DropsArgs(vm VM, m Machine, s Strategy) string {
	const systemdBoot = "systemd-boot takes only the image's"
	_, _, byImage := m.InstallArgs()
	switch {
	case s.Upgrades() && !m.ByGRUB(vm), !s.Upgrades() && !vm.ByBIOS():
		return systemdBoot
	case byImage:
		return "with grubUseUKICmdline, GRUB takes only the image's"
	case s.Upgrades() && m.InstallsApart():
		return "the upgrade API of Talos 1.13 and later passes none to GRUB: talos#13967"
	case !s.Upgrades() && w.Boot != BootFromISO && w.Boot != "" && w.Build.DiskName != "":
		return "a disk image has only its own"
	}
	return ""
}

// TellArgs says when kernel arguments in a configuration take effect, and which arguments of the running kernel its
// next kernel will lack. It returns nothing if all arguments are in effect and stay, or if there are none.
func (w Wanted) TellArgs(vm VM, m Machine) (out []string) {
	if len(m.Cmdline) == 0 {
		return nil
	}
	named, running, byImage := m.InstallArgs()
	named = slices.DeleteFunc(named, func(arg string) bool { return slices.Contains(running, arg) })
	if missing := Each(named, ShownArg); len(missing) > 0 {
		out = append(out, fmt.Sprintf("its configuration names the kernel %s %s (machine.install.extraKernelArgs), which its kernel does not have: %s",
			words.Plural(len(missing), "argument"), strings.Join(missing, " "), whenArgs(vm, m, byImage)))
	}
	var after []string
	for _, s := range Strategies {
		if why := w.DropsArgs(vm, m, s); why != "" {
			after = append(after, fmt.Sprintf("%s (%s)", s, why))
		}
	}
	if lost := Each(w.ArgsLost(m), ShownArg); len(lost) > 0 && len(after) > 0 {
		out = append(out, fmt.Sprintf("its kernel has %s from machine.install.extraKernelArgs, and its next one would not after %s", strings.Join(lost, " "), strings.Join(after, ", ")))
	}
	return out
}

// ByGRUB: GRUB boots the machine, with SeaBIOS, and with UEFI where Talos before 1.10 installed it, with no entry.
func (m Machine) ByGRUB(vm VM) bool {
	return vm.ByBIOS() || !m.FromISO && m.BootEntry == "" && m.NextBoot == ""
}

// ByBIOS says whether the VM's firmware is SeaBIOS, which is Proxmox' default.
func (vm VM) ByBIOS() bool { return vm.Config["bios"] != "ovmf" }

// ShownArg returns a kernel argument as it may be shown: of one that Talos reads, which may be secret, only the name.
func ShownArg(arg string) string {
	if name := ArgName(arg); strings.HasPrefix(name, "talos.") || GivesConfig(arg) {
		return name
	}
	return arg
}

// whenArgs says when a change of machine.install.extraKernelArgs or grubUseUKICmdline takes effect on the machine.
func whenArgs(vm VM, m Machine, byImage bool) string {
	const put = "; customization.extraKernelArgs of its schematic does it"
	switch {
	case !vm.ByBIOS():
		return "never with systemd-boot, with which the VM's firmware boots each new system" + put
	case byImage:
		return "never with grubUseUKICmdline: true, with which GRUB takes the image's" + put
	case !m.InstallsApart():
		return "at the next upgrade, recreate or reimage, without grubUseUKICmdline: true"
	}
	return "at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: the upgrade API of Talos 1.13 and later passes none to GRUB (talos#13967)" + put
}

const useUKI = "machine.install.grubUseUKICmdline"

// ArgsWait says when changes of kernel arguments for GRUB in a file take effect; "": the file changes none.
func ArgsWait(vm VM, m Machine, changes []config.Change) string {
	for _, c := range changes {
		for _, field := range []string{"machine.install.extraKernelArgs", useUKI} {
			if c.Document == config.MainDocument && strings.HasPrefix(c.Path, field) {
				when := whenArgs(vm, m, false)
				if field == useUKI {
					when = strings.Replace(when, ", without grubUseUKICmdline: true", "", 1)
				}
				return field + " takes effect " + when
			}
		}
	}
	return ""
}

// omniArg is the kernel argument, OmniDocument the document, that joins a machine to Omni (controllers/siderolink).
const (
	omniArg      = "siderolink.api"
	OmniDocument = "SideroLinkConfig"
)

// Omni returns what joins the machine to Omni: kernel arguments of its boot, and the document in its configuration.
func (m Machine) Omni() []string {
	out := Where(m.ConfigArgs, func(arg string) bool { return ArgName(arg) == omniArg })
	if len(m.Configs.Active) == 0 {
		return out
	}
	if docs, err := config.Parse(m.Configs.Active); err == nil && docs.Has(OmniDocument) {
		out = append(out, OmniDocument)
	}
	return out
}

// OmniAfter returns the part of Omni() that stays once the machine runs the build's image. A kernel argument that the
// running image's schematic does not state comes from elsewhere (the VM, machine.install.extraKernelArgs) and stays.
func (m Machine) OmniAfter(b Build) []string {
	now := m.Omni()
	if len(now) == 0 {
		return nil
	}
	stated := m.Schematic.stated()
	return slices.DeleteFunc(now, func(what string) bool {
		leaves := slices.ContainsFunc(stated.KernelArgs, func(arg string) bool { return ArgName(arg) == omniArg }) &&
			!slices.ContainsFunc(b.KernelArgs, func(arg string) bool { return ArgName(arg) == omniArg })
		return what != OmniDocument && leaves
	})
}

func (s SchematicEntry) stated() config.Schematic {
	out, _ := config.ParseSchematic(s.YAML) // the comparison reports an unreadable schematic
	return out
}

// OwnConfig lists how the image configures a machine before recast does: kernel arguments, by their names, and an
// embedded machine configuration. Talos looks for a configuration in the image, the kernel arguments and the platform
// before it enters maintenance mode (internal/app/machined/pkg/controllers/config/acquire.go).
func (b Build) OwnConfig() []string { return ownConfig(b.KernelArgs, b.EmbedsConfig) }

// OwnConfig lists the same for the image that the machine runs and for the kernel arguments of its boot.
func (m Machine) OwnConfig() []string {
	stated := m.Schematic.stated()
	embeds := stated.EmbeddedConfig != "" || slices.ContainsFunc(m.Extensions, func(e ExtensionEntry) bool { return e.Name == ConfigEntry })
	return ownConfig(append(stated.KernelArgs, m.ConfigArgs...), embeds)
}

func ownConfig(args []string, embeds bool) (out []string) {
	for _, arg := range args {
		if name := ArgName(arg); GivesConfig(arg) && !slices.Contains(out, "kernel argument "+name) {
			out = append(out, "kernel argument "+name)
		}
	}
	if embeds {
		out = append(out, EmbeddedConfig)
	}
	return out
}

// EmbeddedConfig is OwnConfig's name for the machine configuration in an image.
const EmbeddedConfig = "embedded machine configuration"

// GivesConfig recognises kernel arguments that name a configuration, or a server that has one.
func GivesConfig(arg string) bool {
	name := ArgName(arg)
	return name == "talos.config" || strings.HasPrefix(name, "talos.config.") || name == omniArg
}
