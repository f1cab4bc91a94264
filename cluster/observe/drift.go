package observe

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// Diff compares one node with its wanted state.
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
		d.Notes = append(d.Notes, "not compared, for it takes a talosconfig with the role os:admin: its machine configuration, and a system that waits for a reboot")
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
		d.Reasons, d.Notes = append(append(d.Reasons, reasons...), diffShape(f)...), append(d.Notes, notes...)
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

// IsShape says whether the node's VM is not as recast.yaml wants it.
func (d Drift) IsShape() bool { return len(d.Of(false, false, true).Reasons) > 0 }

// NamesOther says whether the node runs the wanted image, but its configuration names another.
func (d Drift) NamesOther() bool {
	return slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool { return r.Code == "install-image" })
}

// rollable says whether a roll mends the reason with this code. recast upgrade-k8s upgrades Kubernetes; a leftover
// surge node is otherwise as wanted, and serves or is removed.
func rollable(code string) bool { return code != kubernetesVersion && code != LeftOver }

// mends says whether a strategy mends a reason, for the codes that not every strategy mends.
var mends = map[string]func(cluster.Strategy) bool{
	bootOrder:          cluster.Strategy.Replaces,
	"system-disk-size": cluster.Strategy.Replaces,
	"vm-config":        func(cluster.Strategy) bool { return false },
}

// sayMends adds, to each reason that not every strategy mends, which strategies do.
func (d *Drift) sayMends() {
	for i := range d.Reasons {
		r := &d.Reasons[i]
		by, some := mends[r.Code]
		if !some {
			continue
		}
		var names []string
		for _, s := range cluster.Strategies {
			if by(s) {
				names = append(names, string(s))
			}
		}
		r.Text += " (only " + cmp.Or(strings.Join(names, " or "), "a person") + " mends that)"
	}
}

// ByHand says whether the node needs only what a person can mend with one command: see BootsBefore.
func (d Drift) ByHand() bool {
	of := d.Of(true, false, false)
	of.Reasons = slices.DeleteFunc(of.Reasons, func(r cluster.Reason) bool { return !rollable(r.Code) })
	return len(of.Reasons) > 0 && !slices.ContainsFunc(of.Reasons, func(r cluster.Reason) bool { return r.Code != bootOrder })
}

// LeftOver is the code of the reason that a surge node exists: a roll removes it at its end.
const LeftOver = "left-over"

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

// fileDiffers is the code of the reason that a file of an extension is not as locked. A roll ignores the reason:
// labels say nothing about the file.
const fileDiffers = "extension-file"

// WithFiles adds the result of comparing a node's files.
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

// configDiffers is the code of the reason that a node runs another machine configuration than its file in
// talos.machineConfigs.
const configDiffers = "config"

// ConfigReason says how the node's machine configuration differs; "": it does not.
func (d Drift) ConfigReason() string {
	r, _ := cluster.Find(d.Reasons, func(r cluster.Reason) bool { return r.Code == configDiffers })
	return r.Text
}

// diffConfig compares a node's machine configuration. The reason names the first fields that
// differ; the plan and recast config diff show all of them.
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
func diffKept(p parking.Parking) []cluster.Reason {
	var out []cluster.Reason
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

func diffNode(w cluster.Wanted, f Found) []cluster.Reason {
	var out []cluster.Reason
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
		notes = append(notes, fmt.Sprintf("system disk %s has %s, more than the %dG wanted: recast never makes one smaller", system.Key, system.Option("size"), w.SystemGiB))
	default:
		size := fmt.Sprintf("%dG", w.SystemGiB)
		out = append(out, cluster.Reason{
			Code: "system-disk-size", Text: fmt.Sprintf("system disk %s: %s → %s", system.Key, system.Option("size"), size), Old: system.Option("size"), New: size,
		})
	}
	return out, notes
}

func diffShape(f Found) []cluster.Reason {
	return cluster.Each(f.Shape, func(d shape.Difference) cluster.Reason {
		return cluster.Reason{Code: shapeDiffers, Text: "VM " + d.String(), Old: d.Found, New: d.Wanted}
	})
}

// BootsBefore returns the device that a VM boots before its system disk, "" if there is none, and the command that
// changes that.
func BootsBefore(vm cluster.VM, system string) (first, command string) {
	devices := cluster.BootDevices(vm.Config["boot"])
	if len(devices) == 0 || devices[0] == system {
		return "", ""
	}
	first = devices[0]
	order := append([]string{system}, slices.DeleteFunc(devices, func(key string) bool { return key == system })...)
	return first, fmt.Sprintf("qm set %d --boot 'order=%s'", vm.ID, strings.Join(order, ";"))
}

const (
	kubernetesVersion = "kubernetes-version"
	superseded        = "superseded-disk"
	bootOrder         = "boot-order"
	// shapeDiffers is the code of the reason that a VM is not as recast.yaml wants it.
	shapeDiffers = "vm"
)

// compareShapes compares the VMs of the nodes with the shapes that recast.yaml has for them.
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

// settleHost asks Proxmox whether a VM can be migrated. If the token may not ask, what the storages say counts: the
// migration is planned, and the privilege is among those that the token lacks.
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

// moreMemory returns how many more bytes a VM takes from a host. A migrated VM takes all of its memory from the new
// host.
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
