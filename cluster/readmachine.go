package cluster

import (
	"context"
	"net/netip"
)

// MachineParts are parts of a [Machine]. Each costs its own requests to Talos.
type MachineParts uint

// The parts.
const (
	UUIDPart          MachineParts = 1 << iota
	StandingPart                   // Stage, Ready and Unmet
	VersionPart                    // TalosVersion, Arch and Platform
	NodenamePart                   // Nodename
	HostnamePart                   // Hostname
	TypePart                       // ControlPlane and TypeInit
	BootIDPart                     // BootID
	SystemPart                     // the rest of RunningSystem
	DisksPart                      // Disks, SystemDisk and VolumeStatuses, without what is on which disk
	VolumesPart                    // all that DisksPart has, what is on each disk, Volumes, PoolMembers and FromImage
	ConfigPart                     // InstallImage, Configs and Encryption; it is an error if our talosconfig may not read them
	VisibleConfigPart              // ConfigPart, or ConfigHidden
	AddressesPart                  // Addresses
	// IfReady limits the read to UUIDPart and StandingPart if the machine is not running and ready.
	IfReady

	standingParts = UUIDPart | StandingPart
	bootedParts   = standingParts | VersionPart | BootIDPart | SystemPart
	comparedParts = standingParts | VersionPart | SystemPart | DisksPart | VisibleConfigPart
	// WholeMachine is all parts.
	WholeMachine = bootedParts | NodenamePart | HostnamePart | TypePart | VolumesPart | ConfigPart | AddressesPart
	// planParts are the parts that a plan needs of a machine that it leaves as it is.
	planParts = comparedParts | TypePart | BootIDPart
	// leftParts are the parts that planParts lacks, and which machine and boot they are of.
	leftParts = UUIDPart | NodenamePart | HostnamePart | BootIDPart | VolumesPart | AddressesPart
)

// PartReader reads parts of a configured machine.
type PartReader interface {
	// ReadParts leaves the other parts unset. Readiness is never newer than the parts that it is compared with. The
	// error names the address; a machine that answers but refuses our certificate is an error, too.
	ReadParts(ctx context.Context, addr netip.Addr, parts MachineParts) (Machine, error)
}

// ReadMachine reads all that a configured machine says about itself.
func ReadMachine(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, WholeMachine)
}

// ReadStanding reads whether a machine is running and ready, and what is missing.
func ReadStanding(ctx context.Context, talos PartReader, addr netip.Addr) (MachineStanding, error) {
	m, err := talos.ReadParts(ctx, addr, standingParts)
	return m.MachineStanding, err
}

// ReadIdentity reads which machine a configured machine is.
func ReadIdentity(ctx context.Context, talos PartReader, addr netip.Addr) (MachineIdentity, error) {
	m, err := talos.ReadParts(ctx, addr, UUIDPart|NodenamePart)
	return MachineIdentity{UUID: m.UUID, Nodename: m.Nodename}, err
}

// ReadBooted reads what ReadStanding reads, which system is booted, in which boot, and which system would boot next.
func ReadBooted(ctx context.Context, talos PartReader, addr netip.Addr) (BootedMachine, error) {
	m, err := talos.ReadParts(ctx, addr, bootedParts)
	return m.Booted(), err
}

// ReadArrived reads what ReadBooted reads if the machine is running and ready, else only what ReadStanding reads.
func ReadArrived(ctx context.Context, talos PartReader, addr netip.Addr) (BootedMachine, error) {
	m, err := talos.ReadParts(ctx, addr, bootedParts|IfReady)
	return m.Booted(), err
}

// ReadArrivedWhole reads what ReadMachine reads, except for the addresses, if the machine is running and ready, else
// only what ReadStanding reads.
func ReadArrivedWhole(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, WholeMachine&^AddressesPart|IfReady)
}

// ReadCompared reads what Diff compares, with half as many requests as ReadMachine.
func ReadCompared(ctx context.Context, talos PartReader, addr netip.Addr) (ComparedMachine, error) {
	m, err := talos.ReadParts(ctx, addr, comparedParts)
	return m.Compared(), err
}

// ReadForPlan reads the parts that a plan needs of a machine that it leaves as it is. Complete reads the rest.
func ReadForPlan(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	return talos.ReadParts(ctx, addr, planParts)
}

// Complete reads the parts that ReadForPlan leaves out. If the machine has restarted since, is another machine, or
// hid its configuration, Complete reads all of it again.
func (m Machine) Complete(ctx context.Context, talos PartReader, addr netip.Addr) (Machine, error) {
	rest, err := talos.ReadParts(ctx, addr, leftParts)
	if err != nil {
		return Machine{}, err
	}
	if m.ConfigHidden || rest.BootID != m.BootID || rest.UUID != m.UUID {
		return ReadMachine(ctx, talos, addr)
	}
	m.Hostname, m.Nodename = rest.Hostname, rest.Nodename
	m.FromImage, m.Disks, m.SystemDisk, m.Addresses = rest.FromImage, rest.Disks, rest.SystemDisk, rest.Addresses
	m.Volumes, m.VolumeStatuses, m.PoolMembers = rest.Volumes, rest.VolumeStatuses, rest.PoolMembers
	return m, nil
}
