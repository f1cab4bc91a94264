package shape

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Lacks lists what a node's shape has to say besides, so that a VM can be made of it.
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

// system is the disk of the shape that Talos is installed on.
func system(w cluster.Wanted) (cluster.ShapeDisk, bool) {
	i := slices.IndexFunc(w.Shape.Disks, func(d cluster.ShapeDisk) bool { return d.Key == w.SystemDisk && d.Storage != "" })
	if i < 0 {
		return cluster.ShapeDisk{}, false
	}
	return w.Shape.Disks[i], true
}

// Defaults of a new VM, as Talos needs them.
var newVM = map[string]string{"ostype": "l26", "scsihw": "virtio-scsi-single", "cpu": "host", "cores": "2"}

// New is a node's VM as it will be made, with its system disk as the only disk: what Lacks lists must
// not be missing. The others are added before it is started.
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

// Firmware is the disk for the variables of a new VM's UEFI; none if it has a BIOS.
func Firmware(vm cluster.VM, storage string) map[string]string {
	if vm.Config["bios"] != "ovmf" {
		return nil
	}
	return map[string]string{"efidisk0": storage + ":1,efitype=4m,pre-enrolled-keys=0"}
}

// UUID is the UUID of a new VM (RFC 9562, version 8), the same whenever a run asks for it.
func UUID(run, node string) string {
	b := sha256.Sum256([]byte("uuid/" + run + "/" + node))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
