package cluster

import (
	"cmp"
	"time"
)

// Strategy is how a node is brought to its wanted state: a row of the table below.
type Strategy string

// The strategies. A user asks for Auto, Recreate, Reimage or InPlace; recast chooses the others.
const (
	Auto     Strategy = "auto" // the first of Strategies that is possible
	Recreate Strategy = "recreate"
	Reimage  Strategy = "reimage"
	InPlace  Strategy = "in-place"

	Rollback Strategy = "rollback" // a finished node gets a kept system disk
	PutBack  Strategy = "put-back" // an unfinished replacement is cancelled

	ApplyConfig  Strategy = "apply-config"  // the image is right, the machine configuration is not
	InstallReset Strategy = "install-reset" // a machine that was reset
	Reshape      Strategy = "reshape"       // the system is right, the VM around it is not

	Create Strategy = "create"
	Remove Strategy = "remove"
)

// Strategies are what a user can ask for, in the order in which Auto tries them.
var Strategies = []Strategy{Recreate, Reimage, InPlace}

// From is the state in which a strategy finds the node.
type From int

// The states in which a strategy finds a node.
const (
	Nowhere From = iota + 1 // there is no VM
	Serving                 // as a node of the cluster, or meant to be one
	Blank                   // in maintenance mode: someone has reset it
	Halfway                 // in the middle of a replacement
)

// VMFate is what becomes of the node's VM.
type VMFate int

// The fates of a VM.
const (
	VMMade      VMFate = iota + 1 // it is new
	VMAgain                       // it is deleted and made again
	VMOff                         // it is stopped for a while, and kept
	VMUntouched                   // it is neither stopped nor deleted; the machine in it may reboot
	VMAsBefore                    // it gets its earlier disks and settings back
	VMGone                        // it is deleted
)

// SystemFate says which system disk the node has afterwards.
type SystemFate int

// The fates of a system disk.
const (
	SystemNew    SystemFate = iota + 1 // another disk, without data
	SystemStays                        // the same disk
	SystemKept                         // an earlier disk, which was kept
	SystemOld                          // the disk from before the cancelled replacement
	SystemParked                       // it is on the parking VM
)

// What a strategy can bring to a node from git.
const (
	bringsImage  = 1 << iota // of Talos
	bringsConfig             // the machine configuration
	bringsShape              // the VM's settings
)

// row says what a strategy does to a node, how long that takes, and the words for it.
type row struct {
	from   From
	vm     VMFate
	system SystemFate
	brings int
	outage time.Duration // of a node without a history, see Outage
	words  Words
}

// Words are the words for one strategy in messages.
type Words struct {
	OnIt   string // "recreate it"
	Done   string // "recreated", of the node
	System string // what becomes of its system disk; "": it stays
	Cancel string // what cancelling it does
	Resume string // what finishing it does, where the node's mark tells of it
	First  string // why one node goes first, if nothing else does: "none runs the new build yet"
}

// rows is the table of strategies. Every question about a strategy is answered by its row.
var rows = map[Strategy]row{
	Auto: {from: Serving}, // for a node for which no strategy was possible
	Create: {Nowhere, VMMade, SystemNew, bringsImage | bringsConfig | bringsShape, 4 * time.Minute, Words{
		Done: "was made", Cancel: "says how to cancel it",
	}},
	Recreate: {Serving, VMAgain, SystemNew, bringsImage | bringsConfig | bringsShape, 4 * time.Minute, Words{
		Done: "recreated", System: "parked and replaced by a blank one",
	}},
	Reimage: {Serving, VMOff, SystemNew, bringsImage | bringsConfig | bringsShape, 4 * time.Minute, Words{
		Done: "reimaged", System: "parked and replaced by a blank one",
	}},
	InPlace: {Serving, VMUntouched, SystemStays, bringsImage | bringsShape, 2 * time.Minute, Words{
		Done: "upgraded in place", Resume: "finishes the upgrade",
	}},
	ApplyConfig: {Serving, VMUntouched, SystemStays, bringsConfig | bringsShape, 2 * time.Minute, Words{
		OnIt: "give it its configuration", Done: "got its configuration", Resume: "gives it its configuration", First: "none runs the new configuration yet",
	}},
	InstallReset: {Blank, VMUntouched, SystemStays, bringsConfig, time.Minute, Words{
		OnIt: "give it its configuration back", Done: "got its configuration back",
	}},
	Reshape: {Serving, VMOff, SystemStays, bringsShape, 2 * time.Minute, Words{
		Done: "got its VM's new settings", Cancel: "cancels it: gives the old settings back", First: "none has its new VM yet",
	}},
	Rollback: {Serving, VMOff, SystemKept, 0, 3 * time.Minute, Words{
		OnIt: "roll it back", Done: "rolled back", System: "parked; the node's previous one comes back",
	}},
	PutBack: {Halfway, VMAsBefore, SystemOld, 0, 3 * time.Minute, Words{
		Done: "got its old system disk back", System: "comes back; the new one is parked",
	}},
	Remove: {Serving, VMGone, SystemParked, 0, 2 * time.Minute, Words{
		Done: "was removed", Cancel: "cancels it: gives the node its disks and its VM back",
	}},
}

func (s Strategy) From() From         { return rows[s].from }
func (s Strategy) VM() VMFate         { return rows[s].vm }
func (s Strategy) System() SystemFate { return rows[s].system }
func (s Strategy) Brings() bool       { return rows[s].brings != 0 }

// BringsImage, BringsConfig and BringsShape say what the strategy brings to the node, where it differs.
func (s Strategy) BringsImage() bool  { return rows[s].brings&bringsImage != 0 }
func (s Strategy) BringsConfig() bool { return rows[s].brings&bringsConfig != 0 }
func (s Strategy) BringsShape() bool  { return rows[s].brings&bringsShape != 0 }

// Outage is how long a node is expected to be out. A recreated node took 146 s from power on to ready under software
// emulation (Talos v1.14.1 in QEMU), an upper bound. An in-place upgrade saves the installation and one boot.
func (s Strategy) Outage() time.Duration { return rows[s].outage }

// Words returns the words for the strategy, with defaults where its row has none.
func (s Strategy) Words() Words {
	w := rows[s].words
	w.OnIt = cmp.Or(w.OnIt, string(s)+" it")
	w.Done = cmp.Or(w.Done, string(s))
	w.Cancel = cmp.Or(w.Cancel, "cancels it: puts the old system disk back")
	w.Resume = cmp.Or(w.Resume, "cleans that up")
	return w
}

// KeepsVM says whether the strategy takes a node out and leaves its VM and disks as they are.
func (s Strategy) KeepsVM() bool { return s.From() == Serving && s.VM() == VMUntouched }

// KeepsImage says whether the strategy brings something to a serving node, but no image.
func (s Strategy) KeepsImage() bool { return s.From() == Serving && s.Brings() && !s.BringsImage() }

// DeletesVM says whether the strategy deletes the node's VM, once all its disks are parked.
func (s Strategy) DeletesVM() bool { return s.VM() == VMAgain || s.VM() == VMGone }
func (s Strategy) MakesVM() bool   { return s.VM() == VMMade || s.VM() == VMAgain }

// Upgrades says whether the strategy installs another image beside the running one.
func (s Strategy) Upgrades() bool { return s.System() == SystemStays && s.BringsImage() }

// Installs says whether Talos is installed on a new system disk.
func (s Strategy) Installs() bool { return s.System() == SystemNew }

// Replaces says whether the strategy gives a serving node another system disk, without data.
func (s Strategy) Replaces() bool { return s.From() == Serving && s.Installs() }

// ParksNothing says whether the strategy moves no disk to the parking VM.
func (s Strategy) ParksNothing() bool { return s.From() == Nowhere || s.Reshapes() }

// Reshapes says whether the strategy stops the VM for its shape alone.
func (s Strategy) Reshapes() bool { return s.VM() == VMOff && s.System() == SystemStays }

// SwapsSystem: the node gets another system disk. All such strategies check in the same way what only the old one has.
func (s Strategy) SwapsSystem() bool {
	return s.Replaces() || s.System() == SystemKept || s.System() == SystemOld
}

// SwapsInVM says whether the strategy swaps the system disk and keeps the VM.
func (s Strategy) SwapsInVM() bool { return s.VM() == VMOff && s.System() != SystemStays }

// DisksWith lists the disks that carry a volume with that label, one entry for each volume.
func (m Machine) DisksWith(label string) []string {
	return m.disksWhere(func(v Volume) bool { return v.Label == label })
}

func (m Machine) disksWhere(is func(Volume) bool) []string {
	return Each(Where(m.Volumes, is), func(v Volume) string { return v.Disk })
}

// BootFailure is the policy for a node that does not come back from an in-place upgrade.
type BootFailure string

// The policies. The node's own rollback needs an API that answers; a reimage does not.
const (
	StopOnBootFailure     BootFailure = "stop"
	RollbackOnBootFailure BootFailure = "rollback"
	ReimageOnBootFailure  BootFailure = "reimage"
)

// Reboot is how a machine gets into the system that was installed on it.
type Reboot string

// The ways. A boot by kexec proves nothing about the next one through the firmware.
const (
	ByKexec      Reboot = "kexec"      // from the running kernel, where Talos can
	ByFirmware   Reboot = "powercycle" // as after a power failure
	FirmwareOnce Reboot = "canary"     // the first node of each image through the firmware, the others by kexec
)

// Obstacle is one thing that stands against a strategy.
type Obstacle struct {
	Text string `json:"text"` // what it is, and what lifts it, in words
	// Command lifts it, as root on the VM's host, or from anywhere if it is kubectl; "": no single command does.
	Command string `json:"command,omitempty"`
	// Config is what recast.yaml has to say besides, before the next recast lock.
	Config string `json:"config,omitempty"`
}

func Texts(obstacles []Obstacle) []string {
	return Each(obstacles, func(o Obstacle) string { return o.Text })
}

// Selector chooses nodes by the labels of their Node objects.
type Selector struct {
	Text    string // as the user gave it; "": every node
	Matches func(labels map[string]string) bool
}

// GoneSystemDisk is the name of the system disk of a machine that does not answer: its device name is not recorded.
const GoneSystemDisk = "the system disk"
