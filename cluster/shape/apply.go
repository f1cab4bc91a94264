package shape

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

type changer interface {
	cluster.Editor
	cluster.HA
	cluster.TieReader
	cluster.VMReader
}

// Running is the VM of a node that stays up during the change.
type Running struct {
	Proxmox changer
	VMID    cluster.VMID
	Shape   cluster.Shape
	Machine func(ctx context.Context) (cluster.Machine, error) // reads the node's machine
}

// Now reads the VM, and compares it with its shape.
func (r Running) Now(ctx context.Context) (vm cluster.VM, ds Differences, err error) {
	if vm, err = r.Proxmox.VM(ctx, r.VMID); err != nil {
		return vm, nil, fmt.Errorf("look up VM %d: %w", r.VMID, err)
	}
	if r.Shape.Pool != "" {
		if vm.Pool, err = r.Proxmox.Pool(ctx, r.VMID); err != nil {
			return vm, nil, err
		}
	}
	ds, err = Read(ctx, r.Proxmox, vm, r.Shape)
	return vm, ds, err
}

// Read is Compare with what Proxmox HA has of the VM, if its shape says something about that.
func Read(ctx context.Context, px cluster.TieReader, vm cluster.VM, s cluster.Shape) (ds Differences, err error) {
	var ha *cluster.HAResource
	if s.HA != nil {
		if ha, err = px.HAResource(ctx, vm.ID); err != nil {
			return nil, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
		}
	}
	return Compare(vm, ha, s)
}

// Lacks names the live differences that are left, or else a disk of the shape that the machine does not see, or sees
// smaller than Proxmox has it; "" if there is none. It skips a disk that can't be told apart from other disks of the
// machine.
func (r Running) Lacks(ctx context.Context) (string, error) {
	vm, ds, err := r.Now(ctx)
	if live := ds.At(Live); err != nil || len(live) > 0 {
		return "not as wanted: " + live.String(), err
	}
	m, err := r.Machine(ctx)
	if err != nil {
		return "", fmt.Errorf("read the machine of %s: %w", vm, err)
	}
	drives, err := vm.Bootable()
	if err != nil {
		return "", err
	}
	for _, d := range r.Shape.Disks {
		drive, there := cluster.FindDrive(drives, d.Key)
		if !there || d.SizeGiB == 0 {
			continue
		}
		switch on := m.MachineDisks(vm, drives, d.Key); {
		case len(on) == 0 && len(m.Disks) < len(drives):
			return "it does not see " + d.Key, nil
		case len(on) == 1 && on[0].SizeBytes < drive.SizeBytes():
			return fmt.Sprintf("it sees %s with %s", d.Key, cluster.Size(int64(on[0].SizeBytes))), nil
		}
	}
	return "", nil
}

// Apply puts the live differences right. say receives each action.
func (r Running) Apply(ctx context.Context, say func(string)) error {
	vm, ds, err := r.Now(ctx)
	if err != nil {
		return err
	}
	ds = ds.At(Live)
	set, err := Settings(vm, r.Shape, ds)
	if err != nil {
		return err
	}
	if len(set) > 0 {
		say("setting " + ds.String())
		if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
			return fmt.Errorf("set %v of %s: %w", slices.Sorted(maps.Keys(set)), vm, err)
		}
	}
	if err := Grow(ctx, r.Proxmox, r.VMID, ds, say); err != nil {
		return err
	}
	return applyAround(ctx, r.Proxmox, vm, r.Shape, ds, say)
}

// Settings returns what to set in the VM's configuration to put these differences right. It leaves out the growth of
// disks, which is no setting.
func Settings(vm cluster.VM, s cluster.Shape, ds Differences) (map[string]string, error) {
	set := map[string]string{}
	now := func(key string) string {
		if value, changed := set[key]; changed {
			return value
		}
		return vm.Config[key]
	}
	for _, d := range ds {
		switch key := d.setting; {
		case key == "" || d.grows:
		case key == "description":
			set[key] = vm.Redescribed(s.Settings[key])
		case d.option == "":
			set[key] = d.Wanted
		case cluster.IsDiskKey(key):
			drive, err := cluster.ParseDisk(key, now(key))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", vm, err)
			}
			drive.Options = drive.With(d.option, d.Wanted)
			set[key] = drive.Value()
		default:
			of, order := split(key, now(key))
			if _, there := of[d.option]; !there {
				order = append(order, d.option)
			}
			of[d.option] = d.Wanted
			set[key] = joined(key, of, order)
		}
	}
	return set, nil
}

// Grow grows the disks whose size is one of the differences.
func Grow(ctx context.Context, px interface {
	cluster.Editor
	cluster.VMReader
}, id cluster.VMID, ds Differences, say func(string),
) error {
	for _, d := range ds {
		if !d.grows {
			continue
		}
		vm, err := px.VM(ctx, id)
		if err != nil {
			return fmt.Errorf("look up VM %d: %w", id, err)
		}
		say("growing " + d.setting + " from " + d.Found + " to " + d.Wanted)
		if err := px.GrowDisk(ctx, vm, d.setting, d.Wanted); err != nil {
			return fmt.Errorf("grow %s of %s to %s: %w", d.setting, vm, d.Wanted, err)
		}
	}
	return nil
}

// ignored is the state of a resource that Proxmox HA does not touch.
const ignored = "ignored"

// applyAround puts right what Proxmox keeps outside of the VM's configuration.
func applyAround(ctx context.Context, px changer, vm cluster.VM, s cluster.Shape, ds Differences, say func(string)) error {
	has := func(prefix string) bool {
		return slices.ContainsFunc(ds, func(d Difference) bool {
			return d.setting == "" && strings.HasPrefix(d.Key, prefix)
		})
	}
	if has("pool") {
		say("putting the VM into pool " + s.Pool)
		if err := px.SetPool(ctx, vm.ID, s.Pool); err != nil {
			return fmt.Errorf("put %s into pool %s: %w", vm, s.Pool, err)
		}
	}
	if !has("ha ") {
		return nil
	}
	say("setting what Proxmox HA has of the VM")
	ha, err := px.HAResource(ctx, vm.ID)
	if err != nil {
		return fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	want := cluster.HAResource{VMID: vm.ID, State: "started", Settings: map[string]string{}}
	if ha != nil {
		if ha.State != ignored {
			want.State = ha.State
		}
		maps.Copy(want.Settings, ha.Settings)
	}
	for key, value := range s.HA {
		if key == "state" {
			want.State = value
			continue
		}
		want.Settings[key] = value
	}
	if ha == nil { // the request may be carried out late, when the VM must be off; it must not start the VM then
		first := want
		first.State = ignored
		if err := px.AddHA(ctx, first); err != nil {
			return fmt.Errorf("put %s under Proxmox HA: %w", vm, err)
		}
	}
	return fault.Prefix("change what Proxmox HA has of "+vm.String(), px.SetHA(ctx, want))
}

// cloudInit says whether a cloud-init drive gives the setting to the machine (PVE/QemuServer.pm,
// $confdesc_cloudinit). Such a setting does not wait until the VM is off (vmconfig_hotplug_pending has them all as
// fast-plug): the drive is made again at each start.
func cloudInit(key string) bool {
	return cluster.NumberedBus(key) == "ipconfig" ||
		slices.Contains([]string{"cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"}, key)
}

// givesAddress says whether a value of ipconfigN gives the machine that address.
func givesAddress(value string, addr netip.Addr) bool {
	for o := range strings.SplitSeq(value, ",") {
		_, of, _ := strings.Cut(o, "=")
		if prefix, err := netip.ParsePrefix(of); err == nil && prefix.Addr() == addr {
			return true
		}
	}
	return false
}

// addresses returns a value of ipconfigN with sorted options, and with its addresses as they are usually written.
func addresses(value string) string {
	var options []string
	for o := range strings.SplitSeq(value, ",") {
		name, of, _ := strings.Cut(strings.TrimSpace(o), "=")
		if prefix, err := netip.ParsePrefix(of); err == nil {
			of = prefix.String()
		} else if addr, err := netip.ParseAddr(of); err == nil {
			of = addr.String()
		}
		options = append(options, name+"="+of)
	}
	slices.Sort(options)
	return strings.Join(options, ",")
}

// Lacks lists what else a node's shape has to say before a VM can be made from it.
func Lacks(w cluster.Wanted) []string {
	var out []string
	lacks := func(what string, is bool) {
		if is {
			out = append(out, what)
		}
	}
	_, hasSystem := system(w)
	lacks("nodes[].host", w.Shape.Host == "")
	lacks("memory", w.Shape.Settings["memory"] == "")
	lacks("nics with a bridge", !strings.Contains(w.Shape.Devices["net0"], "bridge="))
	lacks("a disk with system: true, storage and size", !hasSystem || w.SystemGiB == 0)
	lacks("nodes[].address, or ipconfig", !w.Addr.IsValid())
	lacks("cloudinit, which ipconfig needs", w.Shape.Settings["ipconfig0"] != "" && w.Shape.CloudInit == "")
	for _, d := range w.Shape.Disks {
		lacks(fmt.Sprintf("storage and size of disk %s", d.Key), d.Key != w.SystemDisk && (d.Storage == "" || d.SizeGiB == 0))
	}
	return out
}

// system returns the disk of the shape that Talos is installed on.
func system(w cluster.Wanted) (cluster.ShapeDisk, bool) {
	return cluster.Find(w.Shape.Disks, func(d cluster.ShapeDisk) bool {
		return d.Key == w.SystemDisk && d.Storage != ""
	})
}

// Defaults of a new VM, as Talos needs them.
var newVM = map[string]string{"ostype": "l26", "scsihw": "virtio-scsi-single", "cpu": "host", "cores": "2"}

// New returns a node's VM as it will be made, with its system disk as the only disk. Lacks must return nothing for w.
// The other disks are added before the VM is started.
func New(w cluster.Wanted, id cluster.VMID, uuid string) cluster.VM {
	vm := cluster.VM{ID: id, Name: w.Name, Host: w.Shape.Host, Pool: w.Shape.Pool, Config: maps.Clone(newVM)}
	maps.Copy(vm.Config, w.Shape.Settings)
	vm.Config["name"], vm.Config["smbios1"] = w.Name, "uuid="+uuid
	for key, wanted := range w.Shape.Devices {
		vm.Config[key] = newDevice(key, wanted)
	}
	if w.Shape.CloudInit != "" {
		vm.Config["ide0"] = w.Shape.CloudInit + ":cloudinit,media=cdrom"
	}
	if disk, found := system(w); found {
		options := append(slices.Clone(disk.Options), fmt.Sprintf("size=%dG", w.SystemGiB))
		vm.Config[disk.Key] = cluster.Disk{Volid: fmt.Sprintf("%s:vm-%d-disk-0", disk.Storage, id), Options: options}.Value()
	}
	return vm
}

// Firmware returns the disk for the UEFI variables of a new VM; none if the VM has a BIOS.
func Firmware(vm cluster.VM, storage string) map[string]string {
	if vm.Config["bios"] != "ovmf" {
		return nil
	}
	return map[string]string{"efidisk0": storage + ":1,efitype=4m,pre-enrolled-keys=0"}
}

// UUID returns the UUID of a new VM (RFC 9562, version 8). It is the same each time that a run asks for it.
func UUID(run, node string) string {
	b := sha256.Sum256([]byte("uuid/" + run + "/" + node))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
