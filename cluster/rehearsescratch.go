package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Scratch is a scratch VM: made to try a boot ISO out, and of no worth afterwards.
type Scratch struct {
	VM   VM
	Run  string // that made it
	UUID string // that it was made with
}

const scratchPrefix = "recast-rehearse-"

func scratchName(id VMID) string { return scratchPrefix + strconv.Itoa(int(id)) }

// scratchMark is the last line of a scratch VM's description.
func scratchMark(run, cluster, uuid string) string {
	return fmt.Sprintf("%s%s rehearse cluster=%s uuid=%s", runMark, run, cluster, uuid)
}

// ScratchVMs are those of a cluster among all VMs. A copy, which has another UUID
// or name than its description says, is none.
func ScratchVMs(vms []VM, cluster string) []Scratch {
	var out []Scratch
	for _, vm := range vms {
		run := vm.MadeBy()
		marked := slices.ContainsFunc(strings.Split(vm.Config["description"], "\n"), func(line string) bool {
			return strings.TrimSpace(line) == scratchMark(run, cluster, vm.UUID())
		})
		if run != "" && vm.UUID() != "" && marked && vm.Name == scratchName(vm.ID) {
			out = append(out, Scratch{VM: vm, Run: run, UUID: vm.UUID()})
		}
	}
	return out
}

// strange says what of a scratch VM is not as recast makes it.
func (s Scratch) strange() []string {
	var out []string
	say := func(is bool, what string) {
		if is {
			out = append(out, what)
		}
	}
	say(s.VM.Template, "it is a template")
	say(s.VM.HA, "Proxmox HA manages it")
	say(s.VM.Lock != "", "it is locked ("+s.VM.Lock+")")
	disks, err := s.VM.Disks()
	say(err != nil, "its drives can't be read")
	for _, d := range disks {
		ours := d.CDROM && (!d.CloudInit() || d.Owner == s.VM.ID) || d.Key == "efidisk0" && d.Owner == s.VM.ID
		say(!ours, fmt.Sprintf("%s (%s) is none of the drives that it was made with", d.Key, d.Volid))
	}
	return out
}

// deleteScratch deletes a scratch VM and what was made with it: its EFI variables
// and its cloud-init drive. Where another VM has that number there is nothing to do.
func (r *Roller) deleteScratch(ctx context.Context, id VMID, uuid string) error {
	s, err := r.scratch(ctx, id, uuid)
	if err == nil && s.VM.ID != 0 && s.VM.Running {
		if err = r.Proxmox.Stop(ctx, s.VM); err == nil {
			err = r.awaitOff(ctx, id)
		}
	}
	if err == nil && s.VM.ID != 0 {
		err = r.deleteStopped(ctx, id, uuid)
	}
	host := ""
	if s.VM.Host != "" {
		host = " on " + s.VM.Host
	}
	return fault.WithHint(prefix(fmt.Sprintf("the scratch VM %d%s could not be deleted", id, host), err),
		"nothing on it is of any worth: qm stop %d; qm destroy %d deletes it, and so does the next recast roll that has anything to do", id, id)
}

func (r *Roller) awaitOff(ctx context.Context, id VMID) error {
	return wait.Until(ctx, wait.For{Name: fmt.Sprintf("VM %d stopped", id), Every: r.Timing.Poll, Timeout: r.Timing.Stop}, func(ctx context.Context) (bool, string, error) {
		vm, err := r.Proxmox.VM(ctx, id)
		return errors.Is(err, ErrNotFound) || err == nil && !vm.Running, "still running", err
	})
}

func (r *Roller) deleteStopped(ctx context.Context, id VMID, uuid string) error {
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	s, err := r.scratch(ctx, id, uuid) // as it is right now
	switch {
	case err != nil || s.VM.ID == 0:
		return err
	case s.VM.Running:
		return fault.Refusedf("%s runs again: somebody has started it", s.VM)
	}
	err = r.Proxmox.DeleteVM(ctx, s.VM)
	if left, look := r.scratch(ctx, id, uuid); err == nil || errors.Is(err, ErrLostAnswer) && look == nil && left.VM.ID == 0 {
		return nil
	}
	return err
}

// scratch reads a scratch VM afresh and refuses one that is not as it was made;
// the zero Scratch: it is gone.
func (r *Roller) scratch(ctx context.Context, id VMID, uuid string) (Scratch, error) {
	vm, err := r.Proxmox.VM(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return Scratch{}, nil
	}
	if err != nil {
		return Scratch{}, fmt.Errorf("look up VM %d: %w", id, err)
	}
	is := ScratchVMs([]VM{vm}, r.Cluster)
	if len(is) == 0 || is[0].UUID != uuid {
		return Scratch{}, nil
	}
	against := is[0].strange()
	ties, err := r.Proxmox.Ties(ctx, vm)
	if err != nil {
		return is[0], err
	}
	if len(ties.Snapshots) > 0 {
		against = append(against, "it has snapshots: "+strings.Join(ties.Snapshots, ", "))
	}
	if len(against) > 0 {
		return is[0], fault.Refusedf("%s is not as recast made it: %s", vm, strings.Join(against, "; "))
	}
	return is[0], nil
}

// clearScratch deletes what killed runs have left.
func (r *Roller) clearScratch(left []Scratch) step.Step {
	var steps []step.Step
	for _, s := range left {
		steps = append(steps, r.clearScratchStep(s))
	}
	return step.Step{
		ID: "clear-scratch", Title: "delete scratch VMs that a run has left",
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}
}

// clearScratchStep deletes one scratch VM that a killed run has left.
func (r *Roller) clearScratchStep(s Scratch) step.Step {
	return step.Step{
		ID: "delete-" + strconv.Itoa(int(s.VM.ID)), Kind: "delete-scratch", Title: fmt.Sprintf("delete %s, which run %s made to try a boot ISO out", s.VM, s.Run),
		Skip: func(ctx context.Context) (string, error) {
			now, err := r.Proxmox.VM(ctx, s.VM.ID)
			if errors.Is(err, ErrNotFound) || err == nil && now.UUID() != s.UUID {
				return "it is gone", nil
			}
			return "", prefix(fmt.Sprintf("look up VM %d", s.VM.ID), err)
		},
		Do: func(ctx context.Context) error { return r.deleteScratch(ctx, s.VM.ID, s.UUID) },
	}
}

// newUUID is a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// create makes the scratch VM under the last free VMID: parking VMs take the
// first ones. Whoever loses a race for a number takes the next.
func (t *rehearsal) create(ctx context.Context) (VM, error) {
	iso, err := t.isoVolume(ctx)
	if err != nil {
		return VM{}, err
	}
	if err := RequireQuorum(ctx, t.Proxmox); err != nil {
		return VM{}, err
	}
	t.uuid = newUUID()
	for _, id := range slices.Backward(t.ParkingIDs) {
		if _, err := t.Proxmox.VM(ctx, id); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return VM{}, fmt.Errorf("look up VM %d: %w", id, err)
		}
		config, err := t.config(id, iso)
		if err != nil {
			return VM{}, err
		}
		t.vmid = id
		err = t.Proxmox.CreateVM(ctx, t.plan.Host, id, config)
		if errors.Is(err, ErrExists) {
			t.vmid = 0
			continue
		}
		if err != nil {
			return VM{}, fmt.Errorf("create scratch VM %d on %s: %w", id, t.plan.Host, err)
		}
		t.say(t.id, fmt.Sprintf("scratch VM %d", id))
		vm, err := t.Proxmox.VM(ctx, id)
		return vm, prefix(fmt.Sprintf("look up VM %d", id), err)
	}
	return VM{}, fault.WithHint(fault.Refusedf("no VMID is free for a scratch VM on %s", t.plan.Host), "widen proxmox.vmids; recast status says what has them")
}

// scratchMiB bounds the memory of a scratch VM: enough for an image with large
// extensions, which all are in memory, and little enough beside nodes that all run.
const scratchMiB = 4096

func (t *rehearsal) memoryMiB() int {
	mib, err := strconv.Atoi(strings.TrimPrefix(t.plan.found.VM.Config["memory"], "current="))
	if err != nil {
		return scratchMiB
	}
	return min(mib, scratchMiB)
}

// scratchCores are two where the node has as many: Proxmox starts no VM with more
// than its host has.
func scratchCores(node VM) string {
	if n, err := strconv.Atoi(node.Config["cores"]); err == nil && n > 1 {
		return "2"
	}
	return "1"
}

// asNode are the settings that a scratch VM has from the node, with what Proxmox
// takes where there is none: those that decide how firmware and kernel begin.
var asNode = []string{"acpi", "bios", "cpu", "kvm", "machine", "ostype", "scsihw", "vga"}

// config is the scratch VM: the node's firmware and first network card, and none of its disks.
func (t *rehearsal) config(id VMID, iso string) (map[string]string, error) {
	node := *t.plan.found.VM
	disks, err := node.Disks()
	if err != nil {
		return nil, err
	}
	cd := cdKey(node.Config, disks)
	config := map[string]string{
		"name": scratchName(id), "memory": strconv.Itoa(t.memoryMiB()), "balloon": "0", "cores": scratchCores(node), "onboot": "0", "protection": "0",
		"smbios1": "uuid=" + t.uuid, cd: iso + ",media=cdrom", "boot": "order=" + cd,
		"description": "Scratch VM of recast: it tries a boot ISO out before a roll, and is deleted right after that. Nothing on it is of any worth.\n\n" + scratchMark(t.Run, t.Cluster, t.uuid),
	}
	for _, key := range asNode {
		if v := node.Config[key]; v != "" {
			config[key] = v
		}
	}
	if strings.HasPrefix(config["vga"], "serial") {
		config[strings.SplitN(config["vga"], ",", 2)[0]] = "socket"
	}
	if d, err := ParseDisk("efidisk0", node.Config["efidisk0"]); err == nil {
		config["efidisk0"] = Disk{Volid: d.Storage() + ":1", Options: withFormat(withoutOption(d, "size", "format"))}.Value()
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
	if t.addr.IsValid() {
		config[cloudInitKey(cd)] = t.cloudInitStorage() + ":cloudinit"
		config["ipconfig0"] = "ip=" + t.addr.String()
		if t.addr.Contains(t.Rehearse.Gateway) {
			config["ipconfig0"] += ",gw=" + t.Rehearse.Gateway.String()
		}
	}
	return config, nil
}

// firstCard is the node's first network card without what is its own: Proxmox
// makes a MAC where none is given. "": it has no card.
func firstCard(vm VM) string {
	for i := range 32 { // MAX_NETS in QemuServer.pm
		value := vm.Config["net"+strconv.Itoa(i)]
		if value == "" {
			continue
		}
		first, rest, _ := strings.Cut(value, ",")
		model, _, _ := strings.Cut(strings.TrimPrefix(first, "model="), "=")
		d := withoutOption(Disk{Options: strings.Split(rest, ",")}, "macaddr", "link_down")
		return strings.Trim(strings.Join(append([]string{model}, d.Options...), ","), ",")
	}
	return ""
}

// cloudInitKey is a drive beside that CD drive, on a bus that the machine type has.
func cloudInitKey(cd string) string {
	bus := strings.TrimRight(cd, "0123456789")
	for _, n := range []string{"0", "2"} { // q35 has no other IDE drives
		if bus+n != cd {
			return bus + n
		}
	}
	return "" // one of the two is another
}

// cloudInitStorage is where the scratch VM's cloud-init drive is made: where the
// node has its own, else its EFI variables, else its system disk.
func (t *rehearsal) cloudInitStorage() string {
	vm := *t.plan.found.VM
	disks, _ := vm.Disks() // config has read them already
	for _, is := range []func(Disk) bool{Disk.CloudInit, func(d Disk) bool { return d.Key == "efidisk0" }, Disk.Bootable} {
		if i := slices.IndexFunc(disks, is); i >= 0 {
			return disks[i].Storage()
		}
	}
	return ""
}
