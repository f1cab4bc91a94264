package observe

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

func Diff(w cluster.Wanted, f Found, past cluster.History) Drift {
	d := Drift{Node: w.Name, Build: w.Build.ID}
	d.Unread = append(d.Unread, cluster.Each(f.Errs, error.Error)...)
	switch {
	case f.Absent != nil && w.Surge:
		d.Notes = append(d.Notes, "it is there only during a roll")
	case f.Absent != nil:
		d.Reasons = append(d.Reasons, cluster.Reason{Code: "absent", Text: "it is not there yet"})
	}
	if f.Absent != nil {
		for _, trace := range f.Absent.Traces {
			d.Notes = append(d.Notes, "not made: "+trace)
		}
	}
	if f.Open() {
		d.Reasons = append(d.Reasons, cluster.Reason{
			Code: "unfinished",
			Text: fmt.Sprintf("its replacement by run %s is not finished; disks may be on %s", f.Parking.Record.Run, f.Parking.VM),
		})
	}
	if f.Machine != nil {
		d.Talos = f.Machine.TalosVersion
		d.Reasons = append(d.Reasons, cluster.DiffImage(w.Build, f.Machine.RunningSystem, past)...)
		if len(d.Reasons) == 0 { // another image brings its own installer
			d.Reasons = append(d.Reasons, cluster.DiffInstalled(w.Build, f.Machine.RunningSystem, f.Machine.InstallImage)...)
		}
	}
	d.Notes = append(d.Notes, f.Unsupported...)
	if f.ConfigRefused != nil && (f.File == nil || f.File.Err == nil && !f.File.Differs()) {
		d.Notes = append(d.Notes, f.ConfigRefused.Error())
	}
	if f.Machine != nil && f.VM != nil {
		d.Notes = append(d.Notes, w.TellArgs(*f.VM, *f.Machine)...)
	}
	if m := f.Machine; m != nil && len(m.Unmet) > 0 {
		d.Notes = append(d.Notes, "its machine is not well: "+m.Standing())
	}
	if f.Machine != nil {
		d.Notes = append(d.Notes, stuckVolumes(*f.Machine)...)
	}
	if f.Machine != nil && f.Machine.ConfigHidden {
		d.Notes = append(d.Notes, "not compared, because that needs a talosconfig with the role os:admin: its machine configuration, and a system that waits for a reboot")
	}
	if f.File != nil {
		reasons, unread := diffConfig(*f.File)
		d.Reasons, d.Unread = append(d.Reasons, reasons...), append(d.Unread, unread...)
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
		d.Reasons = append(d.Reasons, cluster.Each(f.Shape, func(d shape.Difference) cluster.Reason {
			return cluster.Reason{Code: shapeDiffers, Text: "VM " + d.String(), Old: d.Found, New: d.Wanted}
		})...)
	}
	if f.Parking != nil {
		d.Reasons = append(d.Reasons, diffKept(*f.Parking)...)
	}
	for _, p := range f.Parkings() {
		for _, kept := range p.Record.Kept {
			d.Notes = append(d.Notes, fmt.Sprintf("%s is parked as %s of %s (run %s)", kept.What(), kept.Key, p.VM, kept.Run))
		}
	}
	if w.Surge && !f.Open() && f.Node != nil {
		d.Reasons = append(d.Reasons, cluster.Reason{Code: LeftOver, Text: "it is there only during a roll: unless one is at work, it is left over"})
	}
	d.sayMends()
	d.Stale = len(d.Reasons) > 0
	return d
}

// Drift is how one node differs. A node that could not be read is neither stale nor in sync: Unread says why.
type Drift struct {
	Node    string           `json:"node"`
	Stale   bool             `json:"stale"`
	Reasons []cluster.Reason `json:"reasons,omitempty"`
	Notes   []string         `json:"notes,omitempty"` // kept on purpose, or worth knowing
	Unread  []string         `json:"unread,omitempty"`
	Build   string           `json:"build"` // wanted build ID
	Talos   string           `json:"talos"` // version found, "" if unread
}

// Rollable says whether a roll has anything to do to the node.
func (d Drift) Rollable() bool {
	return slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool { return rollable(r.Code) })
}

// Of returns the part of d that concerns the node's image and what is beside it, its machine configuration, or its VM.
func (d Drift) Of(image, config, vm bool) Drift {
	d.Reasons = slices.DeleteFunc(slices.Clone(d.Reasons), func(r cluster.Reason) bool {
		switch r.Code {
		case configDiffers:
			return !config
		case shapeDiffers:
			return !vm
		}
		return !image
	})
	return d
}

// stuckVolumes lists the volumes that Talos can't make or find. A volume that waits while the machine starts may
// still come, as may one whose selector has no system disk yet: STATE fails like that during each installation.
func stuckVolumes(m cluster.Machine) []string {
	if m.Stage != "running" {
		m.VolumeStatuses = slices.DeleteFunc(slices.Clone(m.VolumeStatuses), func(s cluster.VolumeStatus) bool {
			return s.Phase != "failed" || strings.Contains(s.Error, "system_disk")
		})
	}
	return m.StuckVolumes(nil)
}

// IsImage says whether the node needs another image, or another disk for its image.
func (d Drift) IsImage() bool {
	of := d.Of(true, false, false)
	return of.Rollable() && !of.Tidy()
}

func (d Drift) IsShape() bool { return len(d.Of(false, false, true).Reasons) > 0 }

// NamesOther says whether the node runs the wanted image, but its configuration names another.
func (d Drift) NamesOther() bool {
	return slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool { return r.Code == "install-image" })
}

// rollable: a roll mends that. recast upgrade-k8s upgrades Kubernetes; a leftover surge node serves or is removed.
func rollable(code string) bool { return code != kubernetesVersion && code != LeftOver }

// mends says whether a strategy mends a reason, for the codes that not every strategy mends.
var mends = map[string]func(cluster.Strategy) bool{
	bootOrder:          cluster.Strategy.Replaces,
	"system-disk-size": cluster.Strategy.Replaces,
	"vm-config":        func(cluster.Strategy) bool { return false },
}

func (d *Drift) sayMends() {
	for i := range d.Reasons {
		r := &d.Reasons[i]
		by, some := mends[r.Code]
		if !some {
			continue
		}
		of := cluster.Where(cluster.Strategies, by)
		names := cluster.Each(of, func(s cluster.Strategy) string { return string(s) })
		r.Text += " (only " + cmp.Or(strings.Join(names, " or "), "a person") + " fixes that)"
	}
}

// ByHand says whether the node needs only what a person can mend with one command: see BootsBefore.
func (d Drift) ByHand() bool {
	of := d.Of(true, false, false)
	of.Reasons = slices.DeleteFunc(of.Reasons, func(r cluster.Reason) bool { return !rollable(r.Code) })
	return len(of.Reasons) > 0 && !slices.ContainsFunc(of.Reasons, func(r cluster.Reason) bool { return r.Code != bootOrder })
}

// Tidy says whether a node is right except for what a roll left behind, which is cleaned up while the node stays up.
func (d Drift) Tidy() bool {
	for _, r := range d.Reasons {
		switch r.Code {
		case "cordoned", "boot-media", "install-image", superseded:
		default:
			if rollable(r.Code) {
				return false
			}
		}
	}
	return d.Rollable()
}

func (d Drift) WithFiles(c FileCheck, err error) Drift {
	if err != nil {
		d.Unread = append(d.Unread, err.Error())
		return d
	}
	for _, f := range c.Differ {
		d.Reasons = append(d.Reasons, cluster.Reason{Code: fileDiffers, Text: f.String(), Old: f.Found, New: f.Wanted})
	}
	if c.More > 0 {
		d.Reasons = append(d.Reasons, cluster.Reason{Code: fileDiffers, Text: fmt.Sprintf("%d more files of extensions are not as locked", c.More)})
	}
	d.Notes = append(d.Notes, c.String())
	for _, text := range c.NotCompared {
		d.Notes = append(d.Notes, "not compared: "+text)
	}
	d.Stale = len(d.Reasons) > 0
	return d
}

func (d Drift) ConfigReason() string {
	r, _ := cluster.Find(d.Reasons, func(r cluster.Reason) bool { return r.Code == configDiffers })
	return r.Text
}

// diffConfig compares configurations. The reason names the first fields; the plan and recast config diff show all.
func diffConfig(f cluster.FoundFile) (reasons []cluster.Reason, unread []string) {
	switch {
	case f.Err != nil:
		return nil, []string{"its file in talos.machineConfigs can't be compared with what it runs: " + f.Err.Error()}
	case len(f.Changes) == 0 && f.Pending:
		return []cluster.Reason{{Code: configDiffers, Text: "its machine configuration is stored for its next boot, but it does not run it"}}, nil
	case len(f.Changes) == 0:
		return nil, nil
	}
	var fields []string
	whole := "" // the document that exists on one side only
	for _, c := range f.Changes {
		if c.Path == "" {
			whole = c.Document
		} else if c.Document == whole {
			continue
		}
		fields = append(fields, strings.TrimSpace(strings.TrimPrefix(c.Document+" "+c.Path, "v1alpha1 ")))
	}
	const shown = 3
	text := "its machine configuration differs: " + strings.Join(fields[:min(shown, len(fields))], ", ")
	if more := len(fields) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return []cluster.Reason{{Code: configDiffers, Text: text}}, nil
}

// diffKept lists old system disks that an ended roll was about to free.
func diffKept(p parking.Parking) (out []cluster.Reason) {
	for _, k := range p.Record.Kept {
		if k.Going && !p.Record.Open {
			text := fmt.Sprintf("its last roll was about to free %s of %s, a superseded system disk, and did not finish", k.Key, p.VM)
			if k.Removed {
				text = fmt.Sprintf("the run that removed it was about to free %s of %s, a %s, and did not finish", k.Key, p.VM, k.What())
			}
			out = append(out, cluster.Reason{Code: superseded, Text: text, Old: k.Run})
		}
	}
	return out
}

func diffNode(w cluster.Wanted, f Found) (out []cluster.Reason) {
	if w.Kubernetes != "" && f.Node.KubeletVersion != "" && f.Node.KubeletVersion != w.Kubernetes {
		out = append(out, cluster.Reason{
			Code: kubernetesVersion, Text: fmt.Sprintf("Kubernetes %s → %s", f.Node.KubeletVersion, w.Kubernetes), Old: f.Node.KubeletVersion, New: w.Kubernetes,
		})
	}
	if mark := f.Node.Mark; mark != nil && !f.Open() {
		out = append(out, cluster.Reason{
			Code: "cordoned",
			Text: fmt.Sprintf("run %s cordoned it to roll it %s and did not finish", mark.Run, mark.Strategy), Old: mark.Run,
		})
	}
	return out
}

// diffVM checks how the VM boots, and what a finished roll should not leave in it.
func diffVM(w cluster.Wanted, f Found) (out []cluster.Reason, notes []string) {
	disks, err := f.VM.Disks()
	if err != nil {
		return []cluster.Reason{{Code: "vm-config", Text: err.Error()}}, nil
	}
	for _, d := range disks {
		if name, iso := cluster.BootISO(d); iso {
			out = append(out, cluster.Reason{Code: "boot-media", Text: fmt.Sprintf("boot ISO %s is still in %s", name, d.Key), Old: name})
		}
	}
	if f.Machine == nil {
		return out, nil
	}
	system, err := cluster.ProveSystemDisk(*f.VM, *f.Machine, w.SystemDisk)
	if err != nil {
		return out, []string{err.Error()} // an unproven disk is no drift; a roll refuses the node
	}
	if first, _ := BootsBefore(*f.VM, system.Key); first != "" {
		out = append(out, cluster.Reason{Code: bootOrder, Text: fmt.Sprintf("it boots from %s before its system disk %s", first, system.Key), Old: first, New: system.Key})
	}
	have, want := system.SizeBytes(), uint64(max(w.SystemGiB, 0))<<30
	switch {
	case want == 0 || have == 0 || have == want:
	case have > want:
		notes = append(notes, fmt.Sprintf("system disk %s has %s, more than the %dG wanted: recast never shrinks a disk", system.Key, system.Option("size"), w.SystemGiB))
	default:
		size := fmt.Sprintf("%dG", w.SystemGiB)
		out = append(out, cluster.Reason{
			Code: "system-disk-size", Text: fmt.Sprintf("system disk %s: %s → %s", system.Key, system.Option("size"), size), Old: system.Option("size"), New: size,
		})
	}
	return out, notes
}

// BootsBefore returns the device that a VM boots before its system disk, or "", and the command that changes that.
func BootsBefore(vm cluster.VM, system string) (first, command string) {
	devices := cluster.BootDevices(vm.Config["boot"])
	if len(devices) == 0 || devices[0] == system {
		return "", ""
	}
	first = devices[0]
	order := append([]string{system}, slices.DeleteFunc(devices, func(key string) bool { return key == system })...)
	return first, fmt.Sprintf("qm set %d --boot 'order=%s'", vm.ID, strings.Join(order, ";"))
}

// Codes of reasons.
const (
	LeftOver          = "left-over"      // a surge node exists: a roll removes it at its end
	fileDiffers       = "extension-file" // a file of an extension is not as locked: a roll ignores that, as labels say nothing about the file
	configDiffers     = "config"         // from the node's file in talos.machineConfigs
	shapeDiffers      = "vm"             // from what recast.yaml wants
	kubernetesVersion = "kubernetes-version"
	superseded        = "superseded-disk"
	bootOrder         = "boot-order"
)

func (o Observation) compareShapes(ctx context.Context, px cluster.Inventory, wanted []cluster.Wanted) error {
	err := tryFound(o.Found, ObserveLimit, func(i int, f *Found) (err error) {
		w := &wanted[i]
		if w.Shape.IsEmpty() || f.VM == nil {
			return nil
		}
		w.Shape.Addr = f.Addr
		if f.Shape, err = shape.Read(ctx, px, *f.VM, w.Shape); err == nil && w.Shape.Host != f.VM.Host && w.Shape.Host != "" {
			err = o.settleHost(ctx, px, f, w.Shape.Host)
		}
		return fault.Prefix("node "+w.Name, err)
	})
	if err != nil {
		return err
	}
	return refuseMemory(ctx, px, wanted, o.Found)
}

// settleHost asks Proxmox about a migration. If the token may not, the storages count, and the privilege is lacking.
func (o Observation) settleHost(ctx context.Context, px cluster.TieReader, f *Found, to string) error {
	m := cluster.Migration{Allowed: true}
	if f.VM.Lock == "" { // under a lock Proxmox does not say, and nothing is planned
		said, err := px.Migration(ctx, *f.VM, to)
		switch {
		case err == nil:
			m = said
		case fault.KindOf(err) != fault.Refused:
			return fmt.Errorf("ask Proxmox whether %s can be migrated to %s: %w", f.VM, to, err)
		}
	}
	f.Shape.Settle(*f.VM, m, o.Storages)
	return nil
}

// refuseMemory refuses more memory than a host has left after the VMs before it: such a VM would not start.
func refuseMemory(ctx context.Context, px cluster.HostReader, wanted []cluster.Wanted, found []Found) error {
	left := map[string]int64{}
	short := func(host string, more int64) (string, error) {
		free, known := left[host]
		if !known {
			var err error
			if free, err = px.FreeMemory(ctx, host); err != nil {
				return "", fmt.Errorf("read the free memory of %s: %w", host, err)
			}
		}
		if left[host] = free; more > free {
			return fmt.Sprintf("and %s has %s left: the VM would not start", host, cluster.Size(free)), nil
		}
		left[host] = free - more
		return "", nil
	}
	var order []int // surge nodes last: if none is made, they take nothing
	for _, surge := range []bool{false, true} {
		for i := range found {
			if wanted[i].Surge == surge {
				order = append(order, i)
			}
		}
	}
	for _, i := range order {
		f := &found[i]
		if f.Absent != nil {
			more := mebibytes(wanted[i].Shape.Settings["memory"])
			why, err := short(f.Absent.Host, more)
			switch {
			case err != nil:
				f.Absent.Against = append(f.Absent.Against, fmt.Sprintf("%s: is nodes[].host, %s, a Proxmox node?", err, f.Absent.Host))
			case why != "":
				f.Absent.Against = append(f.Absent.Against, fmt.Sprintf("its VM takes %s of memory, %s", cluster.Size(more), why))
			}
		}
		for j := range f.Shape {
			d := &f.Shape[j]
			more, host := moreMemory(*d, *f, wanted[i].Shape)
			if more <= 0 {
				continue
			}
			why, err := short(host, more)
			switch {
			case err != nil && host != f.VM.Host:
				d.When, d.Why = shape.Never, err.Error()
			case err != nil:
				return err
			case why != "":
				d.When, d.Why = shape.Never, fmt.Sprintf("it takes %s more than it has, %s", cluster.Size(more), why)
			}
		}
	}
	return nil
}

// mebibytes returns, in bytes, a VM's memory as Proxmox writes it.
func mebibytes(memory string) int64 {
	n, err := strconv.ParseInt(strings.TrimPrefix(memory, "current="), 10, 64)
	if err != nil {
		n = 512 // Proxmox' default
	}
	return n << 20
}

// moreMemory returns how many more bytes a VM takes from a host: a migrated one takes all its memory from the new host.
func moreMemory(d shape.Difference, f Found, wanted cluster.Shape) (more int64, host string) {
	moves := cmp.Or(f.Shape.Moves(shape.Live), f.Shape.Moves(shape.Off))
	switch {
	case moves != "" && d.Key == "host":
		return mebibytes(cmp.Or(wanted.Settings["memory"], f.VM.Config["memory"])), moves
	case moves != "" || d.Key != "memory":
		return 0, ""
	}
	more = mebibytes(d.Wanted)
	if f.VM.Running {
		more -= mebibytes(d.Found)
	}
	return more, f.VM.Host
}

// ClaimReader reads what running machines say about their images.
type ClaimReader interface {
	// Claims reads what the machine at addr says about its image. It refuses another UUID.
	Claims(ctx context.Context, addr netip.Addr, uuid string) (Claims, error)
}

// Claims is what a running machine says about its image. The builder of the image wrote all of it.
type Claims struct {
	TalosVersion string
	Arch         string
	Platform     string
	Layers       []ExtensionLayer // as its extensions.yaml lists them
	Booted       BootClaims
	// Factory is the resource that Talos 1.14 and later makes from the schematic's entry in Layers; nil: there is none.
	Factory *FactoryClaim
}

// ExtensionLayer is one entry of a machine's list of extensions.
type ExtensionLayer struct {
	Name, Version, Author string
	ExtraInfo             string // only in the schematic's own entry: the schematic
}

// BootClaims is what the machine says about its boot.
type BootClaims struct {
	Entry      string // boot loader entry, lower-case; "": unknown
	Next       string // entry that the next boot takes; "": unknown
	UKI        *bool  // booted from a unified kernel image; nil: unknown
	SecureBoot bool
	// Locks are the values of recast.lock on the kernel's command line; Cmdline says whether the command line could
	// be read.
	Locks   []string
	Cmdline bool
}

// FactoryClaim is the resource ImageFactorySchematic.
type FactoryClaim struct {
	SchematicID, Flavor, URL string
}

// KnownBuild is one build of an available lock.
type KnownBuild struct {
	Lock      string // file: "recast.lock", or a past lock's
	Present   bool   // the lock is recast.lock
	Shared    bool   // by another machine: only what its hashes prove is believed
	Schematic string // name of the schematic in the configuration
	File      string
	Build     cluster.Build
	ISOSHA256 string // "": not built
	Signer    string // fingerprint of the key that signed the installer; "": not verified
}

// Certainty is how well a link of the chain holds.
type Certainty string

// Proven was recomputed from bytes; Claimed is what the image says about itself and nothing
// contradicts; Unknown has no source; Contradicted conflicts with the rest.
const (
	Proven       Certainty = "proven"
	Claimed      Certainty = "claimed"
	Unknown      Certainty = "unknown"
	Contradicted Certainty = "contradicted"
)

// Origin says who made an image, as far as known.
type Origin string

// FromLock is a build of an available lock; FromOtherLock has a recast.lock value of no
// available lock; FromSchematic is another schematic without one; FromImager has extensions but
// no schematic, FromRelease neither; FromNowhere contradicts itself.
const (
	FromLock      Origin = "lock"
	FromOtherLock Origin = "other-lock"
	FromSchematic Origin = "schematic"
	FromImager    Origin = "imager"
	FromRelease   Origin = "release"
	FromNowhere   Origin = "contradictory"
)

// ProvenanceLink is one link of the chain from a lock to a running node.
type ProvenanceLink struct {
	Name      string    `json:"name"` // stable for scripts: "lock", "schematic", …
	Certainty Certainty `json:"certainty"`
	Text      string    `json:"text"`
	Details   []string  `json:"details,omitempty"`
}

// Provenance is the chain from a lock to a running node.
type Provenance struct {
	Node    string           `json:"node"`
	VM      string           `json:"vm"`
	Address netip.Addr       `json:"address"`
	Origin  Origin           `json:"origin"`
	Build   string           `json:"build,omitempty"` // build ID that the node claims; "": no lock at hand made it
	Wanted  string           `json:"wanted,omitempty"`
	Unread  string           `json:"unread,omitempty"` // why its files could not be compared
	Summary []string         `json:"summary"`          // what is proven, claimed, unknown and contradicted, in sentences
	Links   []ProvenanceLink `json:"links"`
}

func (p Provenance) Contradicted() bool {
	return slices.ContainsFunc(p.Links, func(l ProvenanceLink) bool { return l.Certainty == Contradicted })
}

// Described is what a schematic asks for.
type Described struct {
	Extensions []string
	Args       []string // names of kernel arguments: a value may be a token
}

// Trail is everything from which a chain is made.
type Trail struct {
	Wanted   *KnownBuild  // what recast.lock wants of the node; nil: there is no lock
	Known    []KnownBuild // builds of every available lock, including the present one
	Claims   Claims
	Describe func(schematic string) (d Described, ok bool) // describes a schematic that no available lock has
	Files    *FileCheck                                    // compared with the claimed build; nil: not compared
	// Unread is why the files could not be compared although that was requested.
	Unread string
}

// Trace makes the chain.
func Trace(t Trail) Provenance {
	c := t.judge()
	p := Provenance{Origin: c.origin, Unread: t.Unread}
	if t.Wanted != nil {
		p.Wanted = t.Wanted.Build.ID
	}
	if c.known != nil {
		p.Build = c.known.Build.ID
	}
	p.Links = append(p.Links, t.lockLink())
	p.Links = append(p.Links, c.schematicLinks()...)
	p.Links = append(p.Links, c.extensionsLink(), c.talosLink())
	p.Links = append(p.Links, c.bootLinks()...)
	p.Links = append(p.Links, c.filesLink())
	if p.Contradicted() && c.known == nil && c.origin != FromOtherLock {
		p.Origin = FromNowhere
	}
	p.Summary = c.summary(p)
	return p
}

// Claimant returns the build whose files the machine claims to have, by the lock of its schematic; nil: none has it.
func (t Trail) Claimant() *KnownBuild { return t.judge().known }

// Entries in a machine's list that are no extensions: its schematic, and the list of modules if it has any.
const (
	schematicEntry = "schematic"
	modulesEntry   = "modules.dep"
)

// judged is a trail with the conclusions from its claims.
type judged struct {
	Trail
	origin  Origin
	entries []ExtensionLayer // of the schematic: one, unless the image contradicts itself
	lock    string           // "sha256-…" in the schematic
	known   *KnownBuild      // the build with exactly that schematic
	kin     *KnownBuild      // a build with the same extension digests, if known is nil
}

func (t Trail) judge() judged {
	j := judged{Trail: t}
	extensions := 0
	for _, l := range t.Claims.Layers {
		switch l.Name {
		case schematicEntry:
			j.entries = append(j.entries, l)
		case modulesEntry:
		default:
			extensions++
		}
	}
	switch {
	case len(j.entries) > 1:
		j.origin = FromNowhere
		return j
	case len(j.entries) == 0 && extensions > 0:
		j.origin = FromImager
		return j
	case len(j.entries) == 0:
		j.origin = FromRelease
		return j
	}
	e := cluster.SchematicEntry{ID: j.entries[0].Version, YAML: j.entries[0].ExtraInfo}
	j.lock = e.LockHash()
	j.known, j.kin = j.find(e.ID)
	switch {
	case j.known != nil:
		j.origin = FromLock
	case j.lock != "":
		j.origin = FromOtherLock
	default:
		j.origin = FromSchematic
	}
	return j
}

// find finds the build with a schematic: of several locks, that with the running Talos, then the present lock.
func (j judged) find(schematicID string) (known, kin *KnownBuild) {
	builds := slices.Clone(j.Known)
	slices.SortStableFunc(builds, func(a, b KnownBuild) int {
		running := j.Claims.TalosVersion
		runs := cluster.TrueFirst(a.Build.TalosVersion == running, b.Build.TalosVersion == running)
		return cmp.Or(runs, cluster.TrueFirst(a.Present, b.Present))
	})
	for i, b := range builds {
		switch {
		case b.Build.SchematicID == schematicID && known == nil:
			known = &builds[i]
		case b.Build.LockHash == j.lock && j.lock != "" && kin == nil:
			kin = &builds[i]
		}
	}
	if known != nil {
		return known, nil
	}
	return nil, kin
}

// idOf returns the ID of a schematic: the hash of its text, as Image Factory computes it.
func idOf(schematic string) string {
	sum := sha256.Sum256([]byte(schematic))
	return hex.EncodeToString(sum[:])
}

// imagerAuthor is the author of the schematic's entry in images that recast built with the Talos imager.
const imagerAuthor = "recast"

func builder(author string) string {
	flavor, url, _ := strings.Cut(strings.TrimSuffix(author, ")"), " (")
	switch {
	case author == imagerAuthor:
		return "recast, with the Talos imager"
	case flavor == "" && url == "":
		return "nobody named"
	case url == "":
		return author
	}
	return flavor + " at " + url
}

func (j judged) summary(p Provenance) (out []string) {
	if p.Contradicted() {
		out = append(out, "contradicted: "+strings.Join(names(p.Links, Contradicted), ", ")+": the node's answers contradict each other, so nothing that it says about its image can be relied on")
	}
	switch {
	case j.known != nil && j.Wanted != nil && j.known.Build.ID == j.Wanted.Build.ID:
		out = append(out, "it claims the build that recast.lock wants")
	case j.known != nil:
		out = append(out, fmt.Sprintf("it claims build %s of %s, not what recast.lock wants", words.Short(j.known.Build.ID), j.known.Lock))
	case j.origin == FromOtherLock:
		out = append(out, "it claims a lock that is not at hand: another machine's .recast, another branch or another project has it")
	case j.origin == FromSchematic:
		out = append(out, "it claims someone's schematic, which recast did not lock")
	case j.origin == FromImager:
		out = append(out, "it was built by hand with the Talos imager: what from is unknown")
	case j.origin == FromRelease:
		out = append(out, "it looks like an image of a Talos release, which nothing in it confirms")
	}
	if j.Files != nil && j.known != nil && j.Files.Same() {
		out = append(out, "proven: the bytes of its extensions' files. Not proven, only claimed: Talos itself, its kernel and its arguments")
	} else if !p.Contradicted() {
		out = append(out, "proven about the node: nothing, all of it is what the image says of itself")
	}
	return out
}

func names(links []ProvenanceLink, s Certainty) []string {
	of := cluster.Where(links, func(l ProvenanceLink) bool { return l.Certainty == s })
	return cluster.Each(of, func(l ProvenanceLink) string { return l.Name })
}

func (t Trail) lockLink() ProvenanceLink {
	w := t.Wanted
	if w == nil {
		return ProvenanceLink{Name: "lock", Certainty: Unknown, Text: "there is no recast.lock that says what the node should run"}
	}
	l := ProvenanceLink{Name: "lock", Certainty: Proven, Text: fmt.Sprintf("%s wants schematic %s (%s), Talos %s: build %s", w.Lock, w.Schematic, w.File, w.Build.TalosVersion, w.Build.ID)}
	l.Details = append(l.Details, "schematic ID "+w.Build.SchematicID, cluster.LockArg+w.Build.LockHash)
	return l.with(w)
}

func (l ProvenanceLink) with(b *KnownBuild) ProvenanceLink {
	for _, e := range b.Build.Extensions {
		l.Details = append(l.Details, fmt.Sprintf("extension %s: %s@%s", e.Title(), e.Ref, e.Digest))
	}
	if b.Shared {
		return l.and("a copy in the mirror: what its installer is, and whether that is signed, nothing here proves")
	}
	if b.Build.Installer == "" {
		return l.and("installer: none was built")
	}
	l = l.and("installer " + b.Build.Installer)
	if b.Signer != "" {
		l = l.and("its signature was verified, key sha256:" + b.Signer)
	} else {
		l = l.and("its signature was not verified")
	}
	if b.ISOSHA256 != "" {
		l = l.and("boot ISO " + b.Build.ISOName + " sha256:" + b.ISOSHA256)
	}
	return l
}

func (l ProvenanceLink) and(detail string) ProvenanceLink {
	l.Details = append(l.Details, detail)
	return l
}

func (j judged) schematicLinks() []ProvenanceLink {
	switch {
	case len(j.entries) > 1:
		l := ProvenanceLink{Name: "schematic", Certainty: Contradicted, Text: fmt.Sprintf("the image carries %d schematics: it was built from another image that had one already", len(j.entries))}
		for _, e := range j.entries {
			l = l.and(fmt.Sprintf("schematic %s by %s", e.Version, builder(e.Author)))
		}
		return []ProvenanceLink{l}
	case j.origin == FromImager:
		return []ProvenanceLink{{Name: "schematic", Certainty: Unknown, Text: "the image carries no schematic: someone built it with the Talos imager, and nothing in it says from what"}}
	case j.origin == FromRelease:
		return []ProvenanceLink{{Name: "schematic", Certainty: Unknown, Text: "the image carries neither a schematic nor extensions, as Talos' own releases do"}}
	}
	return []ProvenanceLink{j.entryLink(), j.knownLink()}
}

func (j judged) entryLink() ProvenanceLink {
	e := j.entries[0]
	l := ProvenanceLink{Name: "schematic", Certainty: Claimed, Text: fmt.Sprintf("the image says that it was built by %s from schematic %s", builder(e.Author), e.Version)}
	if f := j.Claims.Factory; f != nil && f.SchematicID != e.Version {
		return ProvenanceLink{Name: "schematic", Certainty: Contradicted, Text: fmt.Sprintf("its list of extensions has schematic %s, its resource ImageFactorySchematic %s", e.Version, f.SchematicID)}
	}
	switch {
	case e.ExtraInfo == "":
		l = l.and("it does not carry the schematic's text")
	case idOf(e.ExtraInfo) != e.Version:
		l.Certainty = Contradicted
		l = l.and("the text that it carries makes another ID: " + idOf(e.ExtraInfo))
	default:
		l = l.and("the text that it carries makes that ID")
	}
	if j.lock != "" {
		l = l.and(cluster.LockArg + j.lock)
	}
	return l
}

func (j judged) knownLink() ProvenanceLink {
	const name = "build"
	switch {
	case j.known != nil && j.Wanted != nil && j.known.Build.ID == j.Wanted.Build.ID:
		return ProvenanceLink{Name: name, Certainty: Claimed, Text: fmt.Sprintf("that schematic is build %s, the one that %s wants", words.Short(j.known.Build.ID), j.Wanted.Lock)}
	case j.known != nil:
		l := ProvenanceLink{Name: name, Certainty: Claimed, Text: fmt.Sprintf("that schematic is build %s of %s: schematic %s, Talos %s", j.known.Build.ID, j.known.Lock, j.known.Schematic, j.known.Build.TalosVersion)}
		return l.with(j.known)
	case j.kin != nil:
		return ProvenanceLink{Name: name, Certainty: Unknown, Text: fmt.Sprintf("no lock at hand has that schematic; one with the same extension digests is build %s of %s", j.kin.Build.ID, j.kin.Lock)}
	case j.lock != "":
		return ProvenanceLink{Name: name, Certainty: Unknown, Text: "recast locked that schematic, but no lock at hand made it: the digests of its extensions are unknown"}
	}
	l := ProvenanceLink{Name: name, Certainty: Unknown, Text: "recast did not lock that schematic: the digests of its extensions are unknown"}
	if j.entries[0].ExtraInfo == "" {
		return l
	}
	d, ok := j.Describe(j.entries[0].ExtraInfo)
	if !ok {
		return l.and("its text is no schematic that this recast understands")
	}
	l = l.and("it asks for extensions: " + words.OrNone(strings.Join(d.Extensions, ", ")))
	return l.and("it asks for kernel arguments: " + words.OrNone(strings.Join(d.Args, ", ")))
}

func (j judged) extensionsLink() ProvenanceLink {
	l := ProvenanceLink{Name: "extensions", Certainty: Claimed}
	var m cluster.RunningSystem
	for _, e := range j.Claims.Layers {
		if e.Name == schematicEntry || e.Name == modulesEntry {
			continue
		}
		m.Extensions = append(m.Extensions, cluster.ExtensionEntry{Name: e.Name, Version: e.Version})
		author := ""
		if e.Author != "" {
			author = " by " + e.Author
		}
		l = l.and(strings.TrimSpace(e.Name+" "+e.Version) + author)
	}
	l.Text = fmt.Sprintf("the node lists %s, by name and version", words.Counted(len(m.Extensions), "extension"))
	if j.known == nil {
		l.Text += "; no digests are known to compare them with"
		return l
	}
	differ := cluster.DiffExtensions(j.known.Build, m)
	if len(differ) == 0 {
		l.Text += ": those of the build"
		return l
	}
	l.Certainty = Contradicted
	l.Text += ": not those of the build that it claims"
	for _, r := range differ {
		l = l.and(r.Text)
	}
	return l
}

func (j judged) talosLink() ProvenanceLink {
	l := ProvenanceLink{Name: "talos", Certainty: Claimed, Text: fmt.Sprintf("the node says that it runs Talos %s for %s on platform %s", j.Claims.TalosVersion, j.Claims.Arch, j.Claims.Platform)}
	if j.known == nil {
		return l
	}
	if talos, arch := j.known.Build.TalosVersion, j.known.Build.Arch; talos != j.Claims.TalosVersion || arch != j.Claims.Arch {
		l.Certainty = Contradicted
		return l.and("the build that it claims is of Talos " + talos + " for " + arch)
	}
	return l
}

func (j judged) bootLinks() []ProvenanceLink {
	b := j.Claims.Booted
	boot := ProvenanceLink{Name: "boot", Certainty: Claimed, Text: "it booted " + b.Entry}
	switch {
	case b.Entry != "" && b.Next != "" && b.Next != b.Entry:
		boot = boot.and("the next boot starts another system: " + b.Next)
	case b.Entry == "":
		boot.Certainty, boot.Text = Unknown, "it does not say which boot entry it was started from: a boot ISO and GRUB have none"
	}
	switch {
	case b.SecureBoot:
		boot = boot.and("with Secure Boot: the firmware verified the image against its keys")
	case b.UKI != nil && *b.UKI:
		boot = boot.and("from a unified kernel image, without Secure Boot: it was not verified")
	case b.UKI != nil:
		boot = boot.and("not from a unified kernel image")
	}
	return []ProvenanceLink{boot, j.cmdlineLink()}
}

func (j judged) cmdlineLink() ProvenanceLink {
	b := j.Claims.Booted
	l := ProvenanceLink{Name: "cmdline", Certainty: Claimed}
	switch {
	case !b.Cmdline:
		l.Certainty, l.Text = Unknown, "the kernel's command line could not be read"
	case len(b.Locks) == 0 && j.lock == "":
		l.Text = "the kernel's command line has no recast.lock either"
	case len(b.Locks) == 0:
		l.Certainty, l.Text = Unknown, "the kernel's command line has no recast.lock: GRUB drops a schematic's arguments on an upgrade, so that says nothing"
		if b.UKI != nil && *b.UKI {
			l.Certainty, l.Text = Contradicted, "the schematic has recast.lock, the command line of the unified kernel image that was booted has not"
		}
	case len(b.Locks) == 1 && b.Locks[0] == j.lock:
		l.Text = "the kernel's command line has the same recast.lock"
	default:
		l.Certainty, l.Text = Contradicted, fmt.Sprintf("the kernel's command line has %s%s, the schematic %s", cluster.LockArg, strings.Join(b.Locks, " and "), words.OrNone(j.lock))
	}
	return l
}

// filesLink returns the only link that no label can forge.
func (j judged) filesLink() ProvenanceLink {
	l := ProvenanceLink{Name: "files", Certainty: Unknown}
	switch {
	case j.Unread != "":
		l.Text = "the files of its extensions could not be compared: " + j.Unread
	case j.known == nil:
		l.Text = "there is nothing to compare the files of its extensions with"
	case j.Files == nil:
		l.Text = "the files of its extensions were not compared: --deep does"
	case len(j.known.Build.Extensions) == 0 && j.Files.Same():
		l.Certainty, l.Text = Proven, "it has no files of any extension, as its build"
	case j.Files.Same():
		l.Certainty, l.Text = Proven, fmt.Sprintf("all %d files of its extensions are those of the images that %s pins by digest", j.Files.Files, j.known.Lock)
		if j.Files.Files == 1 {
			l.Text = fmt.Sprintf("the one file of its extensions is that of the image that %s pins by digest", j.known.Lock)
		}
	default:
		l.Certainty, l.Text = Contradicted, fmt.Sprintf("%d files of its extensions are not those of the images that %s pins by digest", len(j.Files.Differ)+j.Files.More, j.known.Lock)
		if len(j.Files.Differ)+j.Files.More == 1 {
			l.Text = fmt.Sprintf("1 file of its extensions is not that of the images that %s pins by digest", j.known.Lock)
		}
	}
	if j.Files != nil {
		for _, d := range j.Files.Differ {
			l = l.and(d.String())
		}
		if j.Files.More > 0 {
			l = l.and(fmt.Sprintf("%d more", j.Files.More))
		}
		for _, text := range j.Files.NotCompared {
			l = l.and("not compared: " + text)
		}
	}
	return l
}
