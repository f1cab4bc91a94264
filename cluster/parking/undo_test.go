package parking

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

// undoRecord returns the open record of a VM's recreation, with its memory.
func undoRecord(t *testing.T, vm cluster.VM, in *Intent) Record {
	t.Helper()
	rec := must.Get(Record{Cluster: "c1", Node: vm.Name, Run: "20261121-0421-3f2a", Build: strings.Repeat("3f2a", 16), Strategy: cluster.Recreate, Parking: 9900}.
		Opened(Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab"}, nil))(t)
	rec.Intent = in
	return rec
}

func TestWayBack(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 9011, Name: "wk1", Host: "pve1", Pool: "talos", Config: map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=a", "net0": "virtio=BC:24:11:00:00:11,bridge=vmbr0", "tags": "a;b", "ide0": "fast:vm-9011-cloudinit,media=cdrom,size=4M",
		"ide2": "none,media=cdrom", "boot": "order=scsi0;ide2", "onboot": "1", "protection": "1", "description": "it's\n100%41\n", "sshkeys": "ssh-ed25519%20AAAA",
		"scsi0": "fast:vm-9011-disk-0,size=10G", "scsi1": "fast:vm-9011-disk-1,backup=0,serial=d,size=20G", "scsi2": "fast:vm-200-disk-0,serial=h", "unused3": "fast:vm-9011-disk-7",
		"vmgenid": "x", "meta": "y", "digest": "z", "cipassword": "**********",
	}}
	in := &Intent{From: 9011, Key: "scsi1", Volid: "fast:vm-9011-disk-1", To: 9900, ToKey: "scsi1", Options: "backup=0,serial=d", Unnamed: []string{"fast:vm-9011-disk-3", "fast:vm-9900-disk-0"}}
	text := must.Get(undoRecord(t, vm, in).Description())(t)
	_, block, _ := strings.Cut(text, "```sh\n")
	block, rest, _ := strings.Cut(block, "```\n")
	var lines []string
	for line := range strings.Lines(block) {
		if !strings.Contains(line, "() {") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	want := []string{
		`has 9011 'lock: create' && lacks 9011 '.*vm-' && qm unlock 9011 && qm destroy 9011`,
		`has 9011 && lacks 9011 'smbios1:.*a' && exit 1`,
		`has 9011 && qm shutdown 9011 --timeout 120 --forceStop 1`,
		`has 9011 && qm set 9011 --onboot 0 --protection 0`,
		`has 9900 && lacks 9011 && qm create 9011 --ide0 fast:cloudinit --ide2 none,media=cdrom --memory 4096 --name wk1 --net0 virtio=BC:24:11:00:00:11,bridge=vmbr0 --pool talos --smbios1 uuid=a`,
		`lacks 9011 sshkeys: && pvesh set /nodes/localhost/qemu/9011/config --sshkeys "$(printf %b 'ssh-ed25519\004520AAAA')"`,
		`has 9900 unused3: && qm disk move 9900 unused3 --target-vmid 9011 --target-disk unused3`,
		`has 9011 'scsi1: fast:vm-9011-disk-1\b' && gone fast:vm-9011-disk-1 && qm set 9011 --delete scsi1`,
		`has 9011 'unused[0-9]*: fast:vm-9011-disk-1\b' && gone fast:vm-9011-disk-1 && qm set 9011 --delete "$(key 9011 fast:vm-9011-disk-1)"`,
		`lacks 9011 scsi1: && lacks 9900 scsi1: && lost 9900 fast "$(printf %b 'fast:vm-9011-disk-3\nfast:vm-9900-disk-0')" && qm set 9900 --scsi1 "$(lost 9900 fast "$(printf %b 'fast:vm-9011-disk-3\nfast:vm-9900-disk-0')")",backup=0,serial=d`,
		`has 9900 scsi1: && qm disk move 9900 scsi1 --target-vmid 9011 --target-disk scsi1`,
		`lacks 9011 scsi2: && qm set 9011 --scsi2 fast:vm-200-disk-0,serial=h`,
		`has 9011 'scsi0:.*serial=recast-0123456789ab' && lacks 9900 scsi29: && qm disk move 9011 scsi0 --target-vmid 9900 --target-disk scsi29`,
		`has 9011 'scsi0:.*serial=recast-0123456789ab' && qm set 9011 --delete scsi0`,
		`has 9900 scsi30: && qm disk move 9900 scsi30 --target-vmid 9011 --target-disk scsi0`,
		`qm set 9011 --scsi0 "$(vol 9011 scsi0)",size=10G`,
		`qm set 9011 --ide2 none,media=cdrom`,
		`qm set 9011 --boot 'order=scsi0;ide2' --description "$(printf %b 'it'\''s\n100\004541')" --onboot 1 --protection 1 --tags 'a;b'`,
		`qm start 9011`,
		`# unusedN before: unused3`,
	}
	must.Equal(t, "-want +got", want, lines)
	if rest = strings.TrimSpace(rest); !strings.HasPrefix(rest, RecordMark) || strings.Contains(rest, "\n") {
		t.Errorf("the record is not the one last line: %q", rest)
	}
	if encoded := regexp.MustCompile(`%[0-9A-Fa-f]{2}`); encoded.MatchString(text) {
		t.Errorf("Proxmox before 9 would decode %q", encoded.FindString(text))
	}
}

// manyDrives returns a VM with ten disks, four network cards and everything else that a VM may have.
func manyDrives(keys, description int) cluster.VM {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(62)])
		}
		return b.String()
	}
	vm := cluster.VM{ID: 90110, Name: "worker-zone-a-17", Host: "pve1", Pool: "talos-production", Config: map[string]string{
		"name": "worker-zone-a-17", "memory": "65536", "balloon": "0", "cores": "16", "sockets": "1", "cpu": "x86-64-v3", "numa": "1", "machine": "q35", "bios": "ovmf",
		"ostype": "l26", "agent": "1,fstrim_cloned_disks=1", "scsihw": "virtio-scsi-single", "smbios1": "uuid=5ec0ffee-0000-4000-8000-000000090110", "tags": "production;talos;worker;zone-a",
		"onboot": "1", "protection": "1", "startup": "order=3,up=30,down=120", "boot": "order=scsi0;ide2;net0", "ide2": "none,media=cdrom", "ide0": "ceph-nvme:vm-90110-cloudinit,media=cdrom,size=4M",
		"serial0": "socket", "vga": "serial0", "rng0": "source=/dev/urandom", "hostpci0": "mapping=gpu,pcie=1", "ciuser": "talos", "searchdomain": "cluster.example.org", "nameserver": "10.0.0.1",
		"efidisk0": "ceph-nvme:vm-90110-disk-0,efitype=4m,pre-enrolled-keys=0,size=528K", "tpmstate0": "ceph-nvme:vm-90110-disk-1,size=4M,version=v2.0",
		"description": random(description),
	}}
	for i := range 4 {
		vm.Config[fmt.Sprintf("net%d", i)] = fmt.Sprintf("virtio=BC:24:11:%02X:%02X:%02X,bridge=vmbr%d,firewall=1,mtu=9000,queues=8,tag=%d", r.IntN(256), r.IntN(256), r.IntN(256), i, 100+i)
		vm.Config[fmt.Sprintf("ipconfig%d", i)] = fmt.Sprintf("gw=10.%d.0.1,ip=10.%d.0.17/16", i, i)
	}
	for range keys {
		vm.Config["sshkeys"] += "ssh-rsa%20" + random(372) + "%20admin%40example.org%0A"
	}
	for i := range 10 {
		vm.Config[fmt.Sprintf("scsi%d", i)] = fmt.Sprintf("ceph-nvme:vm-90110-disk-%d,aio=io_uring,cache=none,discard=on,iothread=1,serial=data-%s,size=%dG,ssd=1", i+2, random(8), 100+i)
	}
	return vm
}

// TestWayBackFits: the commands fit for a VM with many settings, and never prevent a record from being written.
func TestWayBackFits(t *testing.T) {
	t.Parallel()
	type row struct {
		keys, description int
		commands          bool
	}
	must.Each(t, map[string]row{
		"a big VM":            {1, 200, true},
		"with three SSH keys": {3, 20, true},
		"with a description that leaves no room for commands": {1, 3000, false},
		"nor for a reference to the document":                 {1, 3340, false},
	}, func(t *testing.T, c row) {
		vm := manyDrives(c.keys, c.description)
		in := &Intent{From: 90110, Key: "scsi9", Volid: "ceph-nvme:vm-90110-disk-11", To: 9900, ToKey: "scsi9", Options: strings.Repeat("x", 120)}
		rec := undoRecord(t, vm, in)
		text := must.Get(rec.Description())(t)
		if len(text) > cluster.MaxDescription {
			t.Errorf("%d bytes", len(text))
		}
		must.Equal(t, "commands", c.commands, strings.Contains(text, "qm create 90110 "))
		if !c.commands && len(text)+len(noRoom) < cluster.MaxDescription && !strings.Contains(text, "see docs/notes/proxmox.md") {
			t.Errorf("it does not say where else to look: %s", text)
		}
		got, ok, err := ReadRecord(cluster.VM{Config: map[string]string{"description": text}})
		if err != nil || !ok || got.Memory != rec.Memory || len(got.Disks) != 12 {
			t.Errorf("ok %t, %v", ok, err)
		}
	})
}

// TestShellFunctionsAreExplained: the document shows each of them word for word.
func TestShellFunctionsAreExplained(t *testing.T) {
	t.Parallel()
	doc := must.Get(os.ReadFile("../../docs/notes/proxmox.md"))(t)
	for _, f := range shellFunctions {
		must.Contain(t, "the document", string(doc), "\n"+f.body+"\n")
	}
}

// proxmoxCommands are stand-ins for the commands of a Proxmox host, by name.
var proxmoxCommands = map[string]string{
	"qm": `case "$1 $2" in
"config 9011") printf '%s\n' 'description: a%3A b' 'scsi1: data:9011/vm-9011-disk-1.raw,serial=a' 'scsi10: data:9011/vm-9011-disk-5.raw' 'unused0: data:9011/vm-9011-disk-7.raw' ;;
"config 9900") echo 'scsi30: data:9900/vm-9900-disk-0.raw' ;;
"config 404") echo "Configuration file 'nodes/pve1/qemu-server/404.conf' does not exist" >&2; exit 2 ;;
"disk rescan") [ "$4 $5 $6" = '9011 --dryrun 1' ] || exit 1
	printf '%s\n' "NOTE: running in dry-run mode, won't write changes out!" 'rescan volumes...'
	printf "VM 9011 add unreferenced volume '%s' as 'unused1' to config\n" data:9011/vm-9011-disk-3.raw data:9011/vm-9011-disk-4.raw fast:vm-9011-disk-0 ;;
*) echo "qm $*" ;;
esac`,
	"pvesm": `[ "$2" != away ] || exit 255
echo 'Volid                         Format  Type             Size VMID'
[ "$2" = empty ] || echo 'data:9011/vm-9011-disk-1.raw  raw     images     1073741824 9011'`,
	"ha-manager": `printf 'vm:9011\n\tstate started\n\nvm:90112\n\tstate stopped\n'`,
}

// TestShellFunctions runs the functions of the undo commands in a real shell.
func TestShellFunctions(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for name, body := range proxmoxCommands {
		must.Do(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	}
	var functions strings.Builder
	for _, f := range shellFunctions {
		functions.WriteString(strings.NewReplacer("PARKING", "9900", "VMID", "9011").Replace(f.body) + "\n")
	}
	const volumes = "data:9011/vm-9011-disk-"
	tests := map[string]struct {
		want string // what it prints
		no   bool   // it fails
	}{
		"has 9011":                               {},
		"has 404":                                {no: true},
		"lacks 404 scsi1:":                       {},
		"lacks 9011 scsi1:":                      {no: true},
		"has 9011 scsi0:":                        {no: true},
		`has 9011 'scsi1:.*serial=a'`:            {},
		`has 9011 'scsi1: ` + volumes + `1\b'`:   {},
		`has 9011 'unused[0-9]*: data.*7.raw\b'`: {},
		"vol 9011 scsi1":                         {want: volumes + "1.raw"},
		"vol 9011 scsi10":                        {want: volumes + "5.raw"},
		"key 9011 " + volumes + "7.raw":          {want: "unused0"},
		"lost 9011 data":                         {want: volumes + "3.raw\n" + volumes + "4.raw"},
		"lost 9011 data " + volumes + "3.raw":    {want: volumes + "4.raw"},
		`lost 9011 data "$(printf %b '` + volumes + `3.raw\n` + volumes + `4.raw')"`: {no: true},
		"lost 9011 fast":             {want: "fast:vm-9011-disk-0"},
		"lost 9011 slow":             {no: true},
		"gone " + volumes + "1.raw":  {no: true},
		"gone " + volumes + "10.raw": {},
		"gone empty:9011/a.raw":      {},
		"gone away:9011/a.raw":       {no: true}, // the storage can't be read
		"ha 9011":                    {},
		"ha 901":                     {no: true},
		"back scsi30 scsi0":          {want: "qm disk move 9900 scsi30 --target-vmid 9011 --target-disk scsi0"},
		"back scsi1":                 {},
	}
	for call, test := range tests {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", functions.String()+call)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); got != test.want || (err != nil) != test.no {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
