package contract

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// create requests a VM under a number of the suite's.
func (s *server) create(form ...string) (id int, r reply) {
	s.t.Helper()
	id = s.freeID()
	return id, s.do(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id, form...)...)
}

// exists says whether a VM is on the node.
func (s *server) exists(id int) bool {
	return s.do(http.MethodGet, s.vm(id, "config")).Code == http.StatusOK
}

// TestCreateMakesUp: what Proxmox generates for a new VM.
func TestCreateMakesUp(t *testing.T) {
	story(t, "an identity, each time another", 0, func(t *testing.T, s *server) {
		net0 := "net0=virtio,bridge=" + s.place.bridge
		a, b := s.config(s.newVM(net0)), s.config(s.newVM(net0))
		for key, pattern := range map[string]string{
			"smbios1": `^uuid=[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`,
			"vmgenid": `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`,
			"net0":    `^virtio=([0-9A-F]{2}:){5}[0-9A-F]{2},bridge=` + regexp.QuoteMeta(s.place.bridge) + `$`,
		} {
			if !regexp.MustCompile(pattern).MatchString(a[key]) || a[key] == b[key] {
				t.Errorf("%s: %s and %s", key, a[key], b[key])
			}
		}
		if !regexp.MustCompile(`^creation-qemu=[0-9.]+,ctime=[0-9]+$`).MatchString(a["meta"]) {
			t.Errorf("meta: %s", a["meta"])
		}
	})
	story(t, "an order of tags, and of boot: first disk, bus by bus, first CD-ROM drive, network", 0, func(t *testing.T, s *server) {
		id := s.newVM("sata0="+s.disk(), "scsi1="+s.disk(), "scsi3="+s.disk(), "ide2=none,media=cdrom",
			"net0=virtio,bridge="+s.place.bridge, "tags=talos;roll;talos")
		s.wantKeys(id, map[string]string{"boot": "order=scsi1;ide2;net0", "tags": "roll;talos"})
	})
	story(t, "sizes for the firmware's volumes", 0, func(t *testing.T, s *server) {
		id := s.newVM("bios=ovmf", "efidisk0="+s.disk()+",efitype=4m", "tpmstate0="+s.disk()+",version=v2.0")
		c := s.config(id)
		for key, size := range map[string]string{"efidisk0": "528K", "tpmstate0": "4M"} {
			if !onFiles(c[key]) {
				size = "" // block storages round it up, each in its own way
			}
			if !strings.Contains(c[key], "size="+size) {
				t.Errorf("%s is %s, want size=%s", key, c[key], size)
			}
		}
	})
	story(t, "nothing for what it says", 0, func(t *testing.T, s *server) {
		want := map[string]string{
			"smbios1": "uuid=11111111-2222-4333-8444-555555555555", "net0": "virtio=BC:24:11:00:00:01,bridge=" + s.place.bridge,
			"machine": "q35", "cpu": "host", "agent": "1", "onboot": "0", "name": "recast-contract.example.com",
		}
		var form []string
		for key, value := range want {
			form = append(form, key+"="+value)
		}
		s.wantKeys(s.newVM(form...), want)
	})
}

// TestCreateDrives: the possible drives of a new VM.
func TestCreateDrives(t *testing.T) {
	story(t, "a volume that is there, whatever size is said", 0, func(t *testing.T, s *server) {
		volid := s.volid(s.newVM("scsi0="+s.disk()), "scsi0")
		id := s.newVM("scsi4=" + volid + ",size=7G")
		same(t, volid+",size=1G", s.config(id)["scsi4"])
	})
	story(t, "the volume of a VM that does not exist", 0, func(t *testing.T, s *server) {
		volid := s.alloc(s.freeID())
		same(t, volid, s.volid(s.newVM("scsi4="+volid), "scsi4"))
	})
	story(t, "a copy of a volume that is there, not of a size", 0, func(t *testing.T, s *server) {
		s.holds("/vms", "VM.Clone")
		volid := s.volid(s.newVM("scsi0="+s.disk()), "scsi0")
		id := s.newVM("scsi0=" + s.place.storage + ":0,import-from=" + volid)
		if got := s.config(id)["scsi0"]; diskName(got) != fmt.Sprintf("vm-%d-disk-0", id) || !strings.Contains(got, "size=1G") || strings.Contains(got, "import-from") {
			t.Errorf("%s", got)
		}
		_, r := s.create("scsi0=" + s.disk() + ",import-from=" + volid)
		want := map[string]string{"scsi0": "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"}
		wantRefusal(t, r, refused, want)
	})
	story(t, "not a path of the node", 0, func(t *testing.T, s *server) {
		id, r := s.create("scsi0=/dev/null")
		if want := "500 Only root can pass arbitrary filesystem paths."; !strings.HasPrefix(r.Status, want) || s.exists(id) {
			t.Errorf("%s, want %s", r.Status, want)
		}
	})
	story(t, "not on a storage that is not there", simulated, func(t *testing.T, s *server) {
		_, r := s.create("scsi0=nosuch:1")
		wantRefusal(t, r, "500 storage 'nosuch' does not exist", nil)
	})
	story(t, "not an ISO as a disk", 0, func(t *testing.T, s *server) {
		_, r := s.create("scsi0=" + s.tinyISO())
		wantRefusal(t, r, refused, map[string]string{"scsi0": "explicit 'media=cdrom' is required for iso images"})
	})
}

// TestCreateFails: it fails in its task, and leaves nothing that it made.
func TestCreateFails(t *testing.T) {
	story(t, "without a volume, and frees the new ones only", 0, func(t *testing.T, s *server) {
		foreign := s.volid(s.newVM("scsi0="+s.disk()), "scsi0")
		missing := strings.Replace(foreign, "disk-0", "disk-7", 1)
		id, r := s.create("scsi0="+s.disk(), "scsi1="+foreign, "scsi2="+missing)
		wantMissing(t, s.wait(r), fmt.Sprintf("unable to create VM %d - ", id), missing)
		if s.exists(id) {
			t.Error("the VM is there")
		}
		s.wantVolumes(id)
		s.wantThere(foreign)
	})
	story(t, "without an ISO", 0, func(t *testing.T, s *server) {
		iso := s.place.isoStorage + ":iso/recast-contract-nosuch.iso"
		id, r := s.create("ide2=" + iso + ",media=cdrom")
		wantMissing(t, s.wait(r), fmt.Sprintf("unable to create VM %d - ", id), iso)
	})
	story(t, "with its own disk attached, which stays", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		volid := s.alloc(id)
		missing := strings.Replace(volid, "disk-9", "disk-7", 1)
		r := s.do(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id, "scsi0="+volid, "scsi1="+missing)...)
		wantMissing(t, s.wait(r), fmt.Sprintf("unable to create VM %d - ", id), missing)
		s.wantThere(volid)
	})
	story(t, "not where only the start fails", 0, func(t *testing.T, s *server) {
		const bridge = "vmbr987"
		s.holds("/sdn/zones/localnetwork/"+bridge, "SDN.Use")
		id, r := s.create("net0=virtio,bridge="+bridge, "start=1")
		end := s.wait(r)
		wantExit(t, end, "OK")
		if got := s.startOf(id); !strings.Contains(got, "bridge '"+bridge+"' does not exist") {
			t.Errorf("the start ended with %q", got)
		}
		s.wantStatus(id, "stopped")
	})
}

// startOf is the exit status of the task that started a VM.
func (s *server) startOf(id int) string {
	s.t.Helper()
	for range 150 {
		for _, o := range s.rows("/nodes/"+s.place.node+"/tasks", "vmid="+itoa(id), "source=all") {
			if text(o["type"]) == "qmstart" && text(o["status"]) != "" && text(o["status"]) != "RUNNING" {
				return text(o["status"])
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	s.t.Fatalf("no start of VM %d", id)
	return ""
}

// TestCreateRefused: refused at once, before anything is made.
func TestCreateRefused(t *testing.T) {
	tests := map[string]struct {
		form   []string
		want   string
		params map[string]string
	}{
		"with a name that is none in DNS": {[]string{"name=a_b"}, refused, map[string]string{"name": "invalid format - value does not look like a valid DNS name"}},
		"with an unknown property":        {[]string{"nosuch=1"}, refused, map[string]string{"nosuch": unknown}},
		"with a description too long":     {[]string{"description=" + strings.Repeat("x", 8193)}, refused, map[string]string{"description": "value may only be 8192 characters long"}},
		"in a pool that is not there":     {[]string{"pool=recast-contract-nosuch"}, "403 Permission check failed (pool 'recast-contract-nosuch' does not exist)", nil},
		"with arguments of QEMU's":        {[]string{"args=-S"}, "500 only root can set 'args' config", nil},
		"with a lock":                     {[]string{"lock=backup"}, "500 only root can set 'lock' config", nil},
		"with a generation ID":            {[]string{"vmgenid=11111111-2222-4333-8444-555555555555"}, "500 only root can set 'vmgenid' config", nil},
		"with CPUs of the node's":         {[]string{"affinity=0"}, "500 only root can set 'affinity' config", nil},
		"with a parallel port":            {[]string{"parallel0=/dev/parport0"}, "500 only root can set 'parallel0' config", nil},
		"with a serial port of the node":  {[]string{"serial0=/dev/ttyS0"}, "500 only root can set 'serial0' config for real devices", nil},
		"with a USB device of the node":   {[]string{"usb0=host=1234:5678"}, "500 only root can set 'usb0' config for real devices", nil},
		"with a PCI device of the node":   {[]string{"hostpci0=host=0000:01:00.0"}, "500 only root can set 'hostpci0' config for non-mapped devices", nil},
	}
	for name, test := range tests {
		story(t, name, 0, func(t *testing.T, s *server) {
			id, r := s.create(test.form...)
			wantRefusal(t, r, test.want, test.params)
			if s.exists(id) {
				t.Error("the VM is there")
			}
		})
	}
}

// TestCreateNeeds: a free number and permissions. It also needs a quorum: see TestNoQuorum.
func TestCreateNeeds(t *testing.T) {
	story(t, "under a number that is taken", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		r := s.do(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id)...)
		wantRefusal(t, r, fmt.Sprintf("500 unable to create VM %d - VM %d already exists on node '%s'", id, id, s.place.node), nil)
	})
	story(t, "under a number that is taken on another node", secondNode, func(t *testing.T, s *server) {
		id := s.newVM()
		r := s.do(http.MethodPost, "/nodes/"+s.place.node2+"/qemu", marked(id)...)
		wantRefusal(t, r, fmt.Sprintf("500 unable to create VM %d - VM %d already exists on node '%s'", id, id, s.place.node), nil)
	})
	story(t, "without the right to", poorToken, func(t *testing.T, s *server) {
		r := s.poor(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(s.freeID())...)
		wantRefusal(t, r, "403 Permission check failed", nil)
	})
	for what, test := range map[string]struct{ path, privilege, form string }{
		"change the node's start order":     {"/", "Sys.Modify", "startup=order=1"},
		"use the bridge":                    {"/sdn/zones/localnetwork/vmbr987", "SDN.Use", "net0=virtio,bridge=vmbr987"},
		"use the node's random numbers":     {"/mapping/hwrng", "Mapping.Use", "rng0=source=/dev/hwrng"},
		"use a PCI device of the cluster's": {"/mapping/pci/nosuch", "Mapping.Use", "hostpci0=mapping=nosuch"},
		"use the node's CD-ROM drive":       {"/", "Sys.Console", "ide2=cdrom,media=cdrom"},
	} {
		story(t, "without the right to "+what, 0, func(t *testing.T, s *server) {
			s.lacks(test.path, test.privilege)
			_, r := s.create(test.form)
			wantRefusal(t, r, fmt.Sprintf("403 Permission check failed (%s, %s)", test.path, test.privilege), nil)
		})
	}
	story(t, "under a number that is none", 0, func(t *testing.T, s *server) {
		r := s.do(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(99)...)
		if r.Status != refused || r.Errors["vmid"] == "" {
			t.Errorf("%s %v", r.Status, r.Errors)
		}
	})
}

// TestCreateAccepts: input that is wrong only later, or not at all.
func TestCreateAccepts(t *testing.T) {
	story(t, "a boot order of drives that are not there", 0, func(t *testing.T, s *server) {
		same(t, "order=scsi7", s.config(s.newVM("boot=order=scsi7"))["boot"])
	})
	story(t, "a bridge that is not there, until the start", 0, func(t *testing.T, s *server) {
		const bridge = "vmbr987"
		s.holds("/sdn/zones/localnetwork/"+bridge, "SDN.Use")
		id := s.newVM("net0=virtio,bridge=" + bridge)
		end := s.task(http.MethodPost, s.vm(id, "status/start"))
		if !strings.Contains(end.Exit, "bridge '"+bridge+"' does not exist") {
			t.Errorf("%q", end.Exit)
		}
	})
	story(t, "disks from who may allocate space, without VM.Config.Disk", simulated, func(t *testing.T, s *server) {
		id := s.freeID()
		r := s.as(s.without("VM.Config.Disk"), http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id, "scsi0="+s.disk())...)
		wantExit(t, s.wait(r), "OK")
	})
	story(t, "a VM in a pool from who may allocate there alone", simulated, func(t *testing.T, s *server) {
		token := s.only("/pool/"+s.place.pool, "VM.Allocate", "VM.Audit", "VM.Config.Options", "VM.Config.Memory", "VM.Config.HWType")
		id := s.freeID()
		wantRefusal(t, s.as(token, http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id)...), "403 Permission check failed", nil)
		end := s.wait(s.as(token, http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id, "pool="+s.place.pool)...))
		wantExit(t, end, "OK")
		if r := s.as(token, http.MethodPut, s.vm(id, "config"), "memory=128"); r.Code != http.StatusOK {
			t.Errorf("what is granted on the pool goes for its VMs, but: %s", r.Status)
		}
	})
	story(t, "another VM's volume from who may configure that one's disks", simulated, func(t *testing.T, s *server) {
		owner, id := s.newVM("scsi0="+s.disk()), s.newVM()
		volid := s.volid(owner, "scsi0")
		token := s.only(fmt.Sprintf("/vms/%d", id), role()...)
		s.also(token, "/storage/"+s.place.storage, "Datastore.Audit", "Datastore.AllocateSpace")
		put := func() reply { return s.as(token, http.MethodPut, s.vm(id, "config"), "scsi5="+volid) }
		wantRefusal(t, put(), fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Config.Disk)", owner), nil)
		s.also(token, fmt.Sprintf("/vms/%d", owner), "VM.Config.Disk")
		if r := put(); r.Code != http.StatusOK {
			t.Errorf("%s", r.Status)
		}
	})
	story(t, "no more of who has lost the VM's ACL with the VM", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		token := s.only(fmt.Sprintf("/vms/%d", id), role()...)
		wantExit(t, s.wait(s.as(token, http.MethodDelete, s.vm(id, ""))), "OK")
		wantRefusal(t, s.as(token, http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id)...), "403 Permission check failed", nil)
	})
}
