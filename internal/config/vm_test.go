package config_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

// withVM returns small with a node's own settings of its VM.
func withVM(section string) string { return withNode("vm: {" + section + "}") }

func vmCases() map[string]problemCase {
	return map[string]problemCase{
		"unknown key":           {withVM("ram: 4096"), "16:10: nodes[0].vm.ram: unknown key, expected one of cores, sockets, vcpus, cpu, cpuunits, numa, memory, balloon, shares, bios, machine, scsihw, ostype, agent, tags, description, onboot, startup, pool, ha, nics, disks, ipconfig, cloudinit, hostpci"},
		"no cores":              {withVM("cores: 0"), "16:10: nodes[0].vm.cores: must be at least 1"},
		"little memory":         {withVM("memory: 8"), "16:10: nodes[0].vm.memory: must be at least 16"},
		"memory with a unit":    {withVM("memory: 4G"), "16:10: nodes[0].vm.memory: must be a whole number, not text"},
		"shares":                {withVM("shares: 50001"), "16:10: nodes[0].vm.shares: 50001 is out of bounds: Proxmox allows 0-50000"},
		"vlan":                  {withVM("nics: [{vlan: 4095}]"), "16:18: nodes[0].vm.nics[0].vlan: 4095 is out of bounds: Proxmox allows 1-4094"},
		"model":                 {withVM("nics: [{model: virtoi}]"), `16:18: nodes[0].vm.nics[0].model: "virtoi" is not one of virtio, e1000, e1000e, rtl8139, vmxnet3, did you mean "virtio"?`},
		"bridge":                {withVM("nics: [{bridge: 'vmbr 0'}]"), `16:18: nodes[0].vm.nics[0].bridge: "vmbr 0" is not a name of a bridge`},
		"cpu":                   {withVM("cpu: 'host, flags=+aes'"), `16:10: nodes[0].vm.cpu: "host, flags=+aes" is not a type of a processor, such as host`},
		"machine":               {withVM("machine: i440"), `16:10: nodes[0].vm.machine: "i440" is not a machine type, such as q35`},
		"startup":               {withVM("startup: 'order=first'"), `16:10: nodes[0].vm.startup: "order=first" is not a start order: write it like order=2,up=30`},
		"tag":                   {withVM("tags: [talos, 'a b']"), `16:24: nodes[0].vm.tags[1]: "a b" is not a tag: letters, digits, '_', '-', '.' and '+'`},
		"tag twice":             {withVM("tags: [talos, talos]"), `16:24: nodes[0].vm.tags[1]: "talos" is listed already (line 16)`},
		"HA state":              {withVM("ha: {state: stopped}"), `16:15: nodes[0].vm.ha.state: "stopped" is not one of started, ignored`},
		"mapping":               {withVM("hostpci: ['0000:01:00.0']"), `16:20: nodes[0].vm.hostpci[0]: "0000:01:00.0" is not a name of a resource mapping`},
		"slot":                  {withVM("disks: [{slot: scsi31}]"), `16:19: nodes[0].vm.disks[0].slot: "scsi31" is not a slot of a disk: write it like scsi1, virtio1 or sata1`},
		"no slot":               {withVM("disks: [{size: 10G}]"), "16:18: nodes[0].vm.disks[0].slot: required"},
		"slot twice":            {withVM("disks: [{slot: scsi1}, {slot: scsi1}]"), `16:34: nodes[0].vm.disks[1].slot: "scsi1" is there already (line 16)`},
		"size":                  {withVM("disks: [{slot: scsi1, size: 10}]"), "16:32: nodes[0].vm.disks[0].size: must be a size such as 100G, not the number 10"},
		"size in MiB":           {withVM("disks: [{slot: scsi1, size: 10M}]"), `16:32: nodes[0].vm.disks[0].size: "10M" is not a size: write it like 100G or 2T`},
		"two system disks":      {withVM("disks: [{slot: scsi0, system: true}, {slot: scsi1, system: true}]"), "16:61: nodes[0].vm.disks[1].system: there is a system disk already (line 16)"},
		"serial of the system":  {withVM("disks: [{slot: scsi0, system: true, serial: a}]"), "16:5: nodes[0].vm: scsi0 has a serial and is the system disk, which recast names itself: remove the serial"},
		"other system disk":     {withNode("systemDisk: {slot: scsi1}\n    vm: {disks: [{slot: scsi0, system: true}]}"), `16:18: nodes[0].systemDisk.slot: "scsi1" is not the system disk of its vmClass, which is scsi0`},
		"balloon above memory":  {withVM("memory: 2048, balloon: 4096"), "16:5: nodes[0].vm: balloon is 4096 MiB, more than memory, which is 2048 MiB"},
		"more vcpus than cores": {withVM("cores: 2, sockets: 2, vcpus: 5"), "16:5: nodes[0].vm: vcpus is 5, and cores times sockets is 4"},
		"host":                  {withNode("host: pve_1"), `16:5: nodes[0].host: "pve_1" is not a name of a Proxmox node`},
		"class":                 {withNode("class: wroker") + "vmClasses: {worker: {cores: 2}}\n", `16:5: nodes[0].class: "wroker" is not in vmClasses (line 17), did you mean "worker"?`},
		"class without any":     {withNode("class: worker"), `16:5: nodes[0].class: "worker" is not in vmClasses (line 1)`},
		"address twice":         {withNode("address: 192.0.2.31") + "  - {name: wk1, schematic: default, address: 192.0.2.31}\n", `17:37: nodes[1].address: 192.0.2.31 is the address of node "cp1" already`},
		"a class with one address": {
			withNode("class: a") + "  - {name: wk1, schematic: default, class: a}\nvmClasses: {a: {ipconfig: ['ip=192.0.2.31/24,gw=192.0.2.1']}}\n",
			`17:37: nodes[1].class: 192.0.2.31 is the address of node "cp1" already`,
		},
		"MAC twice": {
			withVM("nics: [{mac: 'bc:24:11:00:00:01'}]") + "  - {name: wk1, schematic: default, vm: {nics: [{mac: 'BC:24:11:00:00:01'}]}}\n",
			`17:37: nodes[1].vm: BC:24:11:00:00:01 is the address of node "cp1" already`,
		},
		"wrong in a class": {small + "vmClasses: {worker: {cores: 0}}\n", "16:22: vmClasses.worker.cores: must be at least 1"},
	}
}

const shaped = `    class: worker
    host: pve2
    vm:
      memory: 8192
      nics: [{vlan: 20}, {bridge: vmbr1}]
      disks: [{slot: scsi1, size: 1T, ssd: true}, {slot: scsi2, storage: fast, size: 10G}]
      ha: {max_restart: 2}
vmClasses:
  worker:
    cores: 4
    cpu: host
    memory: 4096
    agent: true
    onboot: false
    tags: [talos, Prod]
    pool: k8s
    ha: {state: started}
    nics: [{bridge: vmbr0, model: virtio, firewall: false}]
    disks:
      - {slot: scsi0, system: true, size: 20G, discard: true}
      - {slot: scsi1, storage: fast, size: 100G, cache: none, backup: false}
    hostpci: [gpu]
`

// TestShapeOfNode: a node's own settings are over those of its class, cards by their number and disks
// by their slot.
func TestShapeOfNode(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("recast.yaml", []byte(small+shaped), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	vm := c.ShapeOf(c.Nodes[0])
	if diff := cmp.Diff(map[string]string{"cores": "4", "cpu": "host", "memory": "8192", "onboot": "0", "tags": "Prod;talos"}, vm.Settings()); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"agent": "enabled=1", "net0": "bridge=vmbr0,firewall=0,model=virtio,tag=20", "net1": "bridge=vmbr1", "hostpci0": "mapping=gpu"}, vm.Devices()); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"state": "started", "max_restart": "2"}, vm.HAOptions()); diff != "" {
		t.Errorf("HA (-want +got):\n%s", diff)
	}
	var disks []string
	for _, d := range vm.Disks {
		disks = append(disks, d.Slot+" "+d.Size.String()+" "+str(d.Storage))
		if d.Slot == "scsi1" {
			if diff := cmp.Diff([]string{"backup=0", "cache=none", "ssd=1"}, d.Options()); diff != "" {
				t.Errorf("options of scsi1 (-want +got):\n%s", diff)
			}
		}
	}
	if diff := cmp.Diff([]string{"scsi0 20G ", "scsi1 1024G fast", "scsi2 10G fast"}, disks); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
	if got := c.Nodes[0].SystemDisk; got != (config.SystemDisk{Slot: "scsi0", SizeGiB: 20}) {
		t.Errorf("system disk = %+v", got)
	}
	if class := c.VMClasses["worker"]; *class.Memory != 4096 || len(class.NICs) != 1 || *class.HA.State != "started" || class.HA.MaxRestart != nil {
		t.Error("the class itself was changed")
	}
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
