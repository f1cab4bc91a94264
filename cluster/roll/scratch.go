package roll

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// newUUID is a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

type scratchVM struct {
	*Rehearser
	host string
	vmid cluster.VMID // the one that was requested; 0: none
	uuid string
	path string // of the step
}

func (s *scratchVM) say(text string) { s.Say(s.path, text) }

// create creates the scratch VM with the last free VMID: parking VMs take the first ones. If
// another VM takes the VMID first, it tries the next one.
func (s *scratchVM) create(ctx context.Context, config func(cluster.VMID) (map[string]string, error)) (cluster.VM, error) {
	if err := s.awaitQuorum(ctx); err != nil {
		return cluster.VM{}, err
	}
	for _, id := range slices.Backward(s.VMIDs) {
		if _, err := s.Proxmox.VM(ctx, id); err == nil {
			continue
		} else if !errors.Is(err, cluster.ErrNotFound) {
			return cluster.VM{}, fmt.Errorf("look up VM %d: %w", id, err)
		}
		settings, err := config(id)
		if err != nil {
			return cluster.VM{}, err
		}
		s.vmid = id
		s.say(fmt.Sprintf("making scratch VM %d", id))
		err = s.Proxmox.CreateVM(ctx, s.host, id, settings)
		if errors.Is(err, cluster.ErrExists) {
			s.vmid = 0
			continue
		}
		if err != nil {
			return cluster.VM{}, fmt.Errorf("create scratch VM %d on %s: %w", id, s.host, err)
		}
		vm, err := s.Proxmox.VM(ctx, id)
		return vm, fault.Prefix(fmt.Sprintf("look up VM %d", id), err)
	}
	return cluster.VM{}, fault.WithHint(fault.RehearsalFailed.Refusedf("no VMID is free for a scratch VM on %s", s.host), "widen proxmox.vmids; recast status says what has them")
}

// awaitQuorum comes before each change. No node is out yet, so it waits for a while.
func (s *scratchVM) awaitQuorum(ctx context.Context) error {
	return rolling.Repeat(ctx, s.Timing.Poll, rolling.RepeatBefore, s.say, func(ctx context.Context) error { return cluster.RequireQuorum(ctx, s.Proxmox) })
}

// remove deletes the scratch VM, and returns err with what prevented that.
func (s *scratchVM) remove(ctx context.Context, err error) error {
	if s.vmid == 0 {
		return err
	}
	after := context.WithoutCancel(ctx)
	if errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil { // Proxmox may be about to create or start it
		err = errors.Join(err, s.settle(after))
	}
	after, cancel := context.WithTimeout(after, scratchTimeout)
	defer cancel()
	return errors.Join(err, s.pruner().delete(after, s.vmid, s.uuid))
}

// settle waits for the tasks of the scratch VM only. Other tasks of ours may take longer than a
// user waits after Ctrl-C.
func (s *scratchVM) settle(ctx context.Context) error {
	w := wait.For{
		Name: fmt.Sprintf("tasks of scratch VM %d to end", s.vmid), Every: s.Timing.Poll, Timeout: scratchTimeout, Seen: s.say,
	}
	err := cluster.AwaitTasks(ctx, w, func(ctx context.Context) ([]string, error) {
		return s.Proxmox.OwnTasksOf(ctx, s.host, s.vmid)
	})
	return fault.WithHint(err, "recast prune waits for them, and deletes the scratch VM if they leave one")
}

func (t *trial) create(ctx context.Context) (cluster.VM, error) {
	images := rolling.Published{Proxmox: t.Proxmox, Wanted: t.Model.Wanted, Host: t.Host}
	find := images.ISO
	if t.Disk != "" {
		find = images.Disk
	}
	image, err := find(ctx)
	if err != nil {
		return cluster.VM{}, err
	}
	t.scratchVM = scratchVM{Rehearser: t.Rehearser, host: t.Host, uuid: newUUID(), path: t.path()}
	return t.scratchVM.create(ctx, func(id cluster.VMID) (map[string]string, error) { return t.config(id, image) })
}

// scratchMiB limits the memory of a scratch VM: enough for an image with large extensions, all of
// which are in memory, and little enough to run beside all nodes.
const scratchMiB = 4096

func (t *trial) memoryMiB() int {
	mib, err := strconv.Atoi(strings.TrimPrefix(t.Model.Found.VM.Config["memory"], "current="))
	if err != nil {
		return scratchMiB
	}
	return min(mib, scratchMiB)
}

// asNode are the settings that a scratch VM copies from the node, which decide how firmware and
// kernel start. If the node has none, Proxmox's default applies.
var asNode = []string{"acpi", "bios", "cpu", "kvm", "machine", "ostype", "scsihw", "vga"}

// config is the configuration of the scratch VM: the node's firmware and first network card, and none of its disks. If
// the node will boot a prepared disk, so does the scratch VM, in the same place and on the same storage. The VM is
// protected, because Proxmox may carry out a late delete of an earlier VM with the same VMID.
func (t *trial) config(id cluster.VMID, image string) (map[string]string, error) {
	node := *t.Model.Found.VM
	disks, err := node.Disks()
	if err != nil {
		return nil, err
	}
	cd := cluster.CDKey(node.Config, disks)
	boots, value, cloudInit := cd, image+",media=cdrom", cloudInitKey(cd)
	if t.Disk != "" {
		system, err := t.systemDisk()
		if err != nil {
			return nil, err
		}
		boots, value, cloudInit = system.Key, exchange.Imported(image, system, system.Named(planning.ScratchSerial(t.uuid))), cd
	}
	cores := "1"
	if n, err := strconv.Atoi(node.Config["cores"]); err == nil && n > 1 { // Proxmox starts none with more than the host has
		cores = "2"
	}
	config := map[string]string{
		"name": planning.ScratchName(id), "memory": strconv.Itoa(t.memoryMiB()), "balloon": "0", "cores": cores, "onboot": "0", "protection": "1",
		"smbios1": "uuid=" + t.uuid, boots: value, "boot": "order=" + boots,
		"description": t.description("it tries an image out before a roll", planning.ScratchMark(t.Run, t.Cluster, t.uuid)),
	}
	for _, key := range asNode {
		if v := node.Config[key]; v != "" {
			config[key] = v
		}
	}
	if strings.HasPrefix(config["vga"], "serial") {
		config[strings.SplitN(config["vga"], ",", 2)[0]] = "socket"
	}
	if d, err := cluster.ParseDisk("efidisk0", node.Config["efidisk0"]); err == nil {
		config["efidisk0"] = cluster.Disk{Volid: d.Storage() + ":1", Options: cluster.WithFormat(cluster.WithoutOption(d, "size", "format"))}.Value()
	}
	if card := firstCard(node); card != "" {
		config["net0"] = card
	}
	if t.hasAgent() {
		config["agent"] = "1"
	}
	if node.Pool != "" {
		config["pool"] = node.Pool
	}
	if t.Addr.IsValid() {
		config[cloudInit] = t.cloudInitStorage() + ":cloudinit"
		config["ipconfig0"] = "ip=" + t.Addr.String()
		if t.Gateway.IsValid() {
			config["ipconfig0"] += ",gw=" + t.Gateway.String()
		}
	}
	return config, nil
}

// firstCard is the node's first network card without its MAC and link state. "" if the node has no card.
func firstCard(vm cluster.VM) string {
	for i := range 32 { // MAX_NETS in QemuServer.pm
		if value := vm.Config["net"+strconv.Itoa(i)]; value != "" {
			first, rest, _ := strings.Cut(withoutMAC(value), ",")
			d := cluster.WithoutOption(cluster.Disk{Options: strings.Split(rest, ",")}, "link_down")
			return strings.Trim(strings.Join(append([]string{first}, d.Options...), ","), ",")
		}
	}
	return ""
}

// withoutMAC is a network card without its MAC: Proxmox generates one if none is given.
func withoutMAC(value string) string {
	first, rest, _ := strings.Cut(value, ",")
	model, _, _ := strings.Cut(strings.TrimPrefix(first, "model="), "=")
	d := cluster.WithoutOption(cluster.Disk{Options: strings.Split(rest, ",")}, "macaddr")
	return strings.Trim(strings.Join(append([]string{model}, d.Options...), ","), ",")
}

// systemDisk is the node's system disk, in whose place it will boot a prepared one.
func (t *trial) systemDisk() (cluster.Disk, error) {
	key := t.Model.System.Key
	d, err := cluster.ParseDisk(key, t.Model.Found.VM.Config[key])
	return cluster.WithoutOption(d, "size", "format"), err
}

// cloudInitKey is another drive on the bus of the CD drive: the machine type has that bus.
func cloudInitKey(cd string) string {
	bus := strings.TrimRight(cd, "0123456789")
	for _, n := range []string{"0", "2"} { // q35 has no other IDE drives
		if bus+n != cd {
			return bus + n
		}
	}
	return "" // not reached: one of the two differs from cd
}

// cloudInitStorage is the storage for the scratch VM's cloud-init drive: that of the node's own,
// else of its EFI variables, else of its system disk.
func (t *trial) cloudInitStorage() string {
	vm := *t.Model.Found.VM
	disks, _ := vm.Disks() // config has already read them
	for _, is := range []func(cluster.Disk) bool{cluster.Disk.CloudInit, func(d cluster.Disk) bool { return d.Key == "efidisk0" }, cluster.Disk.Bootable} {
		if i := slices.IndexFunc(disks, is); i >= 0 {
			return disks[i].Storage()
		}
	}
	return ""
}

// ScratchTakes says what a trial of t needs: the storages that get volumes, and the settings of the VM.
func ScratchTakes(t planning.Trial) (storages []string, config map[string]string, err error) {
	r := &trial{Trial: t, Rehearser: &Rehearser{}}
	config, err = r.config(0, "none")
	return slices.Sorted(maps.Keys(r.takes())), config, err
}

func (r *Rehearser) pruner() ScratchPruner {
	return ScratchPruner{Proxmox: r.Proxmox, Cluster: r.Cluster, Timing: r.Timing}
}

// ScratchPruner deletes scratch VMs. Its caller holds the claim, so no run needs them.
type ScratchPruner struct {
	Proxmox cluster.Proxmox // checks that the claim is ours before each change: see Held.Guard
	Cluster string
	Timing  cluster.Timing
	VMs     []ScratchVerdict // a deleted one gets Removed
}

// Judge decides for each scratch VM of the cluster whether it can be deleted. A VM that was changed
// since it was created stays, with the reason.
func (p *ScratchPruner) Judge(ctx context.Context, vms []cluster.VM) error {
	for _, s := range planning.ScratchVMs(vms, p.Cluster) {
		against, err := p.against(ctx, s)
		if err != nil {
			return err
		}
		p.VMs = append(p.VMs, ScratchVerdict{LeftScratch: s.Left(), Keep: against})
	}
	return nil
}

// Steps returns a step for each VM that can be deleted.
func (p ScratchPruner) Steps() []step.Step {
	var steps []step.Step
	for i := range p.VMs {
		if v := &p.VMs[i]; len(v.Keep) == 0 {
			steps = append(steps, p.deleteStep(v))
		}
	}
	return steps
}

func (p ScratchPruner) against(ctx context.Context, s planning.Scratch) ([]string, error) {
	against := s.Strange()
	ties, err := p.Proxmox.Ties(ctx, s.VM)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", s.VM, err)
	}
	if len(ties.Snapshots) > 0 {
		against = append(against, "it has snapshots: "+strings.Join(ties.Snapshots, ", "))
	}
	return against, nil
}

// delete deletes a scratch VM and what was created with it: its EFI variables and its cloud-init
// drive. If another VM has that VMID, it does nothing.
func (p ScratchPruner) delete(ctx context.Context, id cluster.VMID, uuid string) error {
	s, err := p.read(ctx, id, uuid)
	if err == nil && s.VM.ID != 0 && s.VM.Running {
		if err = p.Proxmox.Stop(ctx, s.VM); err == nil {
			off := wait.For{Name: fmt.Sprintf("VM %d stopped", id), Every: p.Timing.Poll, Timeout: p.Timing.Stop}
			err = wait.Until(ctx, off, func(ctx context.Context) (bool, string, error) {
				vm, err := p.Proxmox.VM(ctx, id)
				return errors.Is(err, cluster.ErrNotFound) || err == nil && !vm.Running, "still running", err
			})
		}
	}
	if err == nil && s.VM.ID != 0 {
		err = p.deleteStopped(ctx, id, uuid)
	}
	host := ""
	if s.VM.Host != "" {
		host = " on " + s.VM.Host
	}
	return fault.WithHint(fault.Prefix(fmt.Sprintf("the scratch VM %d%s could not be deleted", id, host), err),
		"recast prune deletes it, once it is as recast made it; qm config %d shows what it is now", id)
}

func (p ScratchPruner) deleteStep(v *ScratchVerdict) step.Step {
	return step.Step{
		ID: "delete-" + strconv.Itoa(int(v.VMID)), Kind: "delete-scratch", Title: "delete " + v.String(), Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) {
			now, found, err := p.find(ctx, v.VMID, v.UUID)
			if err != nil || found {
				return "", err
			}
			v.Removed = now.ID == 0
			return "no VM is that scratch VM any more", nil
		},
		Do: func(ctx context.Context) error { return p.delete(ctx, v.VMID, v.UUID) },
	}
}

func (p ScratchPruner) deleteStopped(ctx context.Context, id cluster.VMID, uuid string) error {
	if err := cluster.RequireQuorum(ctx, p.Proxmox); err != nil {
		return err
	}
	s, err := p.read(ctx, id, uuid) // read again: it may have changed
	switch {
	case err != nil || s.VM.ID == 0:
		return err
	case s.VM.Running:
		return fault.PruneRefused.Refusedf("%s runs again: someone has started it", s.VM)
	case s.VM.Config["protection"] == "1":
		if err := exchange.LiftProtection(ctx, p.Proxmox, s.VM); err != nil {
			return err
		}
		return p.deleteStopped(ctx, id, uuid)
	}
	if err := p.storagesAnswer(ctx, s.VM); err != nil {
		return err
	}
	err = p.Proxmox.DeleteVM(ctx, s.VM)
	if left, look := p.read(ctx, id, uuid); err == nil || errors.Is(err, cluster.ErrLostAnswer) && look == nil && left.VM.ID == 0 {
		return nil
	}
	return err
}

// storagesAnswer asks the storages that the VM has volumes on. Where one does not answer, Proxmox deletes the VM all the
// same, and the volume stays there without a name: it only warns (PVE/QemuServer.pm, destroy_vm).
func (p ScratchPruner) storagesAnswer(ctx context.Context, vm cluster.VM) error {
	disks, err := vm.Disks()
	for _, d := range disks {
		if d.Owner != vm.ID {
			continue
		}
		if _, err := p.Proxmox.HasVolume(ctx, vm.Host, d.Volid); err != nil {
			return fmt.Errorf("see whether storage %s answers, on which %s has %s: %w", d.Storage(), vm, d.Key, err)
		}
	}
	return err
}

// read reads a scratch VM again, and refuses one that was changed since it was created. It returns
// the zero Scratch if the VM no longer exists.
func (p ScratchPruner) read(ctx context.Context, id cluster.VMID, uuid string) (planning.Scratch, error) {
	vm, found, err := p.find(ctx, id, uuid)
	if err != nil || !found {
		return planning.Scratch{}, err
	}
	s := planning.ScratchVMs([]cluster.VM{vm}, p.Cluster)[0]
	against, err := p.against(ctx, s)
	if err != nil {
		return s, err
	}
	if len(against) > 0 {
		return s, fault.PruneRefused.Refusedf("%s is not as recast made it: %s", vm, strings.Join(against, "; "))
	}
	return s, nil
}

// find returns the VM that has the number now, which is the zero VM if none has it, and whether it is the
// scratch VM with that UUID.
func (p ScratchPruner) find(ctx context.Context, id cluster.VMID, uuid string) (vm cluster.VM, found bool, err error) {
	vm, err = p.Proxmox.VM(ctx, id)
	if errors.Is(err, cluster.ErrNotFound) {
		return cluster.VM{}, false, nil
	}
	is := planning.ScratchVMs([]cluster.VM{vm}, p.Cluster)
	return vm, len(is) > 0 && is[0].UUID == uuid, fault.Prefix(fmt.Sprintf("look up VM %d", id), err)
}

// ScratchVerdict is what is to become of one.
type ScratchVerdict struct {
	planning.LeftScratch
	Keep    []string `json:"keep,omitempty"` // why it stays; none: it can go
	Removed bool     `json:"removed"`
}
