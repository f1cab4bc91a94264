package contract

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/internal/sim/must"
)

// create requests a VM under a number of the suite's.
func (s *server) create(form ...string) (id int, r reply) {
	s.t.Helper()
	id = s.freeID()
	return id, s.do(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id, form...)...)
}

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
			must.Hold(t, regexp.MustCompile(pattern).MatchString(a[key]) && a[key] != b[key],
				"%s: %s and %s", key, a[key], b[key])
		}
		wantMatch(t, `^creation-qemu=[0-9.]+,ctime=[0-9]+$`, a["meta"])
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
			must.Contain(t, "what was said", c[key], "size="+size)
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
		got := s.config(id)["scsi0"]
		must.Hold(t, diskName(got) == fmt.Sprintf("vm-%d-disk-0", id) && strings.Contains(got, "size=1G") && !strings.Contains(got, "import-from"), "%s", got)
		_, r := s.create("scsi0=" + s.disk() + ",import-from=" + volid)
		want := map[string]string{"scsi0": "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"}
		wantRefusal(t, r, refused, want)
	})
	story(t, "not a path of the node", 0, func(t *testing.T, s *server) {
		id, r := s.create("scsi0=/dev/null")
		want := "500 Only root can pass arbitrary filesystem paths."
		must.Hold(t, strings.HasPrefix(r.Status, want) && !s.exists(id), "%s, want %s", r.Status, want)
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
		must.Hold(t, !s.exists(id), "the VM is there")
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
		wantExit(t, s.wait(r), "OK")
		must.Contain(t, "what was said", s.startOf(id), "bridge '"+bridge+"' does not exist")
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
			must.Hold(t, !s.exists(id), "the VM is there")
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
		must.Hold(t, r.Status == refused && r.Errors["vmid"] != "", "%s %v", r.Status, r.Errors)
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
		must.Contain(t, "what was said", end.Exit, "bridge '"+bridge+"' does not exist")
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
		same(t, http.StatusOK, s.as(token, http.MethodPut, s.vm(id, "config"), "memory=128").Code)
	})
	story(t, "another VM's volume from who may configure that one's disks", simulated, func(t *testing.T, s *server) {
		owner, id := s.newVM("scsi0="+s.disk()), s.newVM()
		volid := s.volid(owner, "scsi0")
		token := s.only(fmt.Sprintf("/vms/%d", id), role()...)
		s.also(token, "/storage/"+s.place.storage, "Datastore.Audit", "Datastore.AllocateSpace")
		put := func() reply { return s.as(token, http.MethodPut, s.vm(id, "config"), "scsi5="+volid) }
		wantRefusal(t, put(), fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Config.Disk)", owner), nil)
		s.also(token, fmt.Sprintf("/vms/%d", owner), "VM.Config.Disk")
		same(t, http.StatusOK, put().Code)
	})
	story(t, "no more of who has lost the VM's ACL with the VM", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		token := s.only(fmt.Sprintf("/vms/%d", id), role()...)
		wantExit(t, s.wait(s.as(token, http.MethodDelete, s.vm(id, ""))), "OK")
		wantRefusal(t, s.as(token, http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id)...), "403 Permission check failed", nil)
	})
}

const (
	mismatch = "500 checksum mismatch (file change by other user?)"
	someSum  = "da39a3ee5e6b4b0d3255bfef95601890afd80709" // of nothing
)

func TestConfigDigest(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		story(t, "of another configuration is refused at once by "+method, 0, func(t *testing.T, s *server) {
			id := s.newVM()
			wantRefusal(t, s.do(method, s.vm(id, "config"), "memory=128", "digest="+someSum), mismatch, nil)
			s.wantKey(id, "memory", "64")
		})
	}
	story(t, "changes with pending changes", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		before := s.digest(id)
		s.put(s.vm(id, "config"), "memory=128", "digest="+before)
		must.Hold(t, s.digest(id) != before, "the digest is the same")
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=256", "digest="+before), mismatch, nil)
	})
}

func TestConfigAnswers(t *testing.T) {
	story(t, "PUT with nothing and POST with a task", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		r := s.do(http.MethodPut, s.vm(id, "config"), "memory=128")
		must.Hold(t, r.Code == http.StatusOK && r.Data == nil, "PUT: %s %s", r.Status, r.Body)
		same(t, "qmconfig", s.taskOK(http.MethodPost, s.vm(id, "config"), "memory=256").kind())
		s.wantKey(id, "memory", "256")
	})
	story(t, "that nothing was asked for, or something that there is not", 0, func(t *testing.T, s *server) {
		config := s.vm(s.newVM(), "config")
		wantRefusal(t, s.do(http.MethodPut, config), "500 no options specified", nil)
		wantRefusal(t, s.do(http.MethodPut, config, "nosuch=1"), refused, map[string]string{"nosuch": unknown})
		wantRefusal(t, s.do(http.MethodPut, config, "delete=nosuch"), refused, map[string]string{"delete": "unknown option 'nosuch'"})
	})
	story(t, "that the VM is not there", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		want := fmt.Sprintf("500 Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.place.node, id)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "config")), want, nil)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "status/current")), want, nil)
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=128"), want, nil)
	})
	story(t, "that the VM is locked", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		s.sim.world.SetLock(id, "backup")
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=128"), "500 VM is locked (backup)", nil)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "config"), "memory=128"), "500 VM is locked (backup)", nil)
		wantExit(t, s.task(http.MethodPost, s.vm(id, "status/stop")), "VM is locked (backup)")
		wantExit(t, s.task(http.MethodDelete, s.vm(id, "")), "VM is locked (backup)")
		s.sim.world.SetLock(id, "")
	})
	story(t, "that only root skips locks", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		want := map[string]string{"skiplock": "Only root may use this option."}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=128", "skiplock=1"), refused, want)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "status/stop"), "skiplock=1"), refused, want)
		wantRefusal(t, s.do(http.MethodDelete, s.vm(id, ""), "skiplock=1"), refused, want)
	})
}

// TestConfigLock: the lock file of a configuration.
func TestConfigLock(t *testing.T) {
	story(t, "that the lock is taken, after ten seconds", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		release := s.holdLock(id)
		want := fmt.Sprintf("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			begun := time.Now()
			r := s.do(method, s.vm(id, "config"), "memory=128")
			if strings.HasPrefix(text(r.Data), "UPID:") { // since qemu-server 9.1.19 the worker takes it
				wantExit(t, s.wait(r), want)
			} else {
				wantRefusal(t, r, "500 "+want, nil)
			}
			wantTook(t, begun, 9*time.Second, 0)
		}
		release()
	})
	story(t, "that the digest is another one, before the lock (since qemu-server 9.1.19) or after it", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		release := s.holdLock(id)
		locked := fmt.Sprintf("500 can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			got := s.do(method, s.vm(id, "config"), "memory=128", "digest="+someSum)
			if s.sim != nil || got.Status != locked {
				wantRefusal(t, got, mismatch, nil)
			}
		}
		release()
	})
}

func TestConfigDelete(t *testing.T) {
	story(t, "keeps a disk of the VM's own as unusedN", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk()+",serial=lost,ssd=1", "boot=order=scsi1;scsi0")
		volid := s.volid(id, "scsi1")
		s.put(s.vm(id, "config"), "delete=scsi1")
		s.wantKeys(id, map[string]string{"scsi1": "", "unused0": volid, "boot": "order=scsi0"})
		s.put(s.vm(id, "config"), "scsi3="+volid+",serial=again")
		s.wantKeys(id, map[string]string{"scsi3": volid + ",serial=again,size=1G", "unused0": ""})
	})
	story(t, "drops the key of another VM's disk", 0, func(t *testing.T, s *server) {
		owner := s.newVM("scsi0=" + s.disk())
		volid := s.volid(owner, "scsi0")
		id := s.newVM("scsi5=" + volid)
		s.put(s.vm(id, "config"), "delete=scsi5", "force=1")
		s.wantKeys(id, map[string]string{"scsi5": "", "unused0": ""})
		s.wantThere(volid)
	})
	story(t, "keeps nothing of a CD-ROM drive", 0, func(t *testing.T, s *server) {
		s.holds("/vms", "VM.Config.Cloudinit")
		id := s.newVM("ide2=none,media=cdrom", "ide0="+s.place.storage+":cloudinit")
		s.put(s.vm(id, "config"), "delete=ide2,ide0")
		s.wantKeys(id, map[string]string{"ide2": "", "ide0": "", "unused0": ""})
		s.wantVolumes(id)
	})
}

// TestConfigDeleteForGood: what frees a disk, and what has no effect.
func TestConfigDeleteForGood(t *testing.T) {
	story(t, "with force, or of unusedN, frees the disk", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi1="+s.disk(), "scsi2="+s.disk())
		s.put(s.vm(id, "config"), "delete=scsi1", "force=1")
		s.wantVolumes(id, s.volid(id, "scsi2"))
		s.put(s.vm(id, "config"), "delete=scsi2")
		s.put(s.vm(id, "config"), "delete=unused0")
		s.wantVolumes(id)
		s.wantKey(id, "unused0", "")
	})
	story(t, "of what is not set is done", 0, func(t *testing.T, s *server) { s.put(s.vm(s.newVM(), "config"), "delete=scsi9,onboot") })
	story(t, "takes a network card out of the boot order", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "net0=virtio,bridge="+s.place.bridge, "boot=order=net0;scsi0")
		s.put(s.vm(id, "config"), "delete=net0")
		s.wantKey(id, "boot", "order=scsi0")
	})
}

func TestConfigSet(t *testing.T) {
	story(t, "of a drive keeps the disk that was there", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		old := s.volid(id, "scsi0")
		s.put(s.vm(id, "config"), "scsi0="+s.disk())
		if got := s.config(id); got["unused0"] != old || s.volid(id, "scsi0") == old {
			t.Errorf("scsi0 %s, unused0 %s, was %s", got["scsi0"], got["unused0"], old)
		}
	})
	story(t, "adds a CD-ROM drive to the boot order", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "boot=order=scsi0")
		s.put(s.vm(id, "config"), "ide2=none,media=cdrom")
		s.wantKey(id, "boot", "order=scsi0;ide2")
	})
	story(t, "of a volume that is not there is refused at once", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		volid := strings.Replace(s.volid(id, "scsi0"), "disk-0", "disk-7", 1)
		r := s.do(http.MethodPut, s.vm(id, "config"), "scsi5="+volid)
		want := "500 volume '" + volid + "' does not exist"
		must.Hold(t, (!onFiles(volid) || r.Status == want) && r.Code != http.StatusOK, "%s, want %s", r.Status, want)
		wantMissing(t, s.task(http.MethodPost, s.vm(id, "config"), "scsi5="+volid), "", volid)
	})
	story(t, "of an ISO that is not there is refused at once", 0, func(t *testing.T, s *server) {
		volid := s.place.isoStorage + ":iso/recast-contract-nosuch.iso"
		r := s.do(http.MethodPut, s.vm(s.newVM(), "config"), "ide2="+volid+",media=cdrom")
		wantRefusal(t, r, "500 volume '"+volid+"' does not exist", nil)
	})
}

// TestConfigSetNeeds: permissions. It also needs a quorum: see TestNoQuorum.
func TestConfigSetNeeds(t *testing.T) {
	story(t, "root itself, for some options", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		for form, want := range map[string]string{
			"vmgenid=1": "only root can set 'vmgenid' config", "delete=vmgenid": "only root can set 'vmgenid' config",
			"serial0=/dev/ttyS0": "only root can modify 'serial0' config for real devices",
		} {
			wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), form), "500 "+want, nil)
		}
		s.put(s.vm(id, "config"), "smbios1=uuid=11111111-2222-4333-8444-555555555555", "serial0=socket")
	})
	story(t, "the privilege of each option", simulated, func(t *testing.T, s *server) {
		id := s.newVM("scsi1=" + s.disk())
		for privilege, form := range map[string]string{
			"VM.Config.Memory": "memory=128", "VM.Config.CPU": "cores=2", "VM.Config.HWType": "machine=q35", "VM.Config.Options": "onboot=1",
			"VM.Config.Disk": "delete=scsi1", "VM.Config.CDROM": "ide2=none,media=cdrom", "VM.Config.Network": "net0=virtio",
		} {
			poorer := s.without(privilege)
			want := fmt.Sprintf("403 Permission check failed (/vms/%d, %s)", id, privilege)
			wantRefusal(t, s.as(poorer, http.MethodPut, s.vm(id, "config"), form), want, nil)
		}
	})
}

// waiting are the keys of a VM with pending changes.
func (s *server) waiting(id int) map[string]pendingRow {
	s.t.Helper()
	out := map[string]pendingRow{}
	for key, row := range s.pending(id) {
		if row.Pending != "" || row.Delete != "" && row.Delete != "0" {
			out[key] = row
		}
	}
	return out
}

func (s *server) wantWaiting(id int, want map[string]pendingRow) {
	s.t.Helper()
	same(s.t, want, s.waiting(id), cmpopts.EquateEmpty())
}

// now is a key's value without pending changes.
func (s *server) now(id int, key string) string {
	s.t.Helper()
	return text(object(s.t, s.get(s.vm(id, "config"), "current=1"))[key])
}

// TestPending: changes that a running VM can't take wait for its end.
func TestPending(t *testing.T) {
	story(t, "is shown merged, and beside the value", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		s.put(s.vm(id, "config"), "memory=128")
		s.wantWaiting(id, map[string]pendingRow{"memory": {Value: "64", Pending: "128"}})
		same(t, []string{"128", "64"}, []string{s.config(id)["memory"], s.now(id, "memory")})
		s.stop(id)
		same(t, []string{"128", "128"}, []string{s.config(id)["memory"], s.now(id, "memory")})
	})
	story(t, "goes with revert, and is nothing that changes nothing", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		s.put(s.vm(id, "config"), "memory=64")
		s.wantWaiting(id, nil)
		s.put(s.vm(id, "config"), "memory=128", "sata0="+s.disk())
		s.put(s.vm(id, "config"), "revert=memory")
		got := s.waiting(id)
		must.Hold(t, len(got) == 1 && got["sata0"].Pending != "", "%v", got)
		volid := s.volid(id, "sata0")
		s.put(s.vm(id, "config"), "revert=sata0")
		s.wantWaiting(id, nil)
		s.wantKey(id, "unused0", volid)
	})
}

// TestSKU: what recast writes into a VM's SMBIOS before it starts it, to know its machine again.
func TestSKU(t *testing.T) {
	const uuid = "uuid=5ec0ffee-0000-4000-8000-000000000001"
	for before, sku := range map[string]string{
		uuid: ",sku=recast0123456789abcdef0123456789abcdef", uuid + ",manufacturer=cmVjYXN0,base64=1": ",sku=cmVjYXN0MDEyMzQ1Njc4OWFiY2RlZg==",
	} {
		story(t, "of "+before+" is there at once while the VM is off, and as it was written", 0, func(t *testing.T, s *server) {
			id, want := s.newVM("smbios1="+before), before+sku
			s.put(s.vm(id, "config"), "smbios1="+want)
			s.wantWaiting(id, nil)
			same(t, []string{want, want}, []string{s.config(id)["smbios1"], s.now(id, "smbios1")})
		})
		story(t, "of "+before+" waits for the end of a VM that runs", 0, func(t *testing.T, s *server) {
			id, want := s.newVM("smbios1="+before), before+sku
			s.start(id)
			s.put(s.vm(id, "config"), "smbios1="+want)
			s.wantWaiting(id, map[string]pendingRow{"smbios1": {Value: before, Pending: want}})
			same(t, []string{want, before}, []string{s.config(id)["smbios1"], s.now(id, "smbios1")})
			s.stop(id)
			same(t, []string{want, want}, []string{s.config(id)["smbios1"], s.now(id, "smbios1")})
		})
	}
	story(t, "needs VM.Config.HWType", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		form := "smbios1=" + s.config(id)["smbios1"] + ",sku=cmVjYXN0"
		want := fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Config.HWType)", id)
		wantRefusal(t, s.as(s.without("VM.Config.HWType"), http.MethodPut, s.vm(id, "config"), form), want, nil)
		r := s.as(s.without("VM.Config.Options"), http.MethodPut, s.vm(id, "config"), form)
		must.Be(t, r.Code == http.StatusOK, "%s", r.Status)
	})
	story(t, "is refused to a token that has no rights, and taken from the suite's own", poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		form := "smbios1=" + s.config(id)["smbios1"] + ",sku=cmVjYXN0"
		r := s.poor(http.MethodPut, s.vm(id, "config"), form)
		must.Hold(t, r.Code == http.StatusForbidden, "%s", r.Status)
		s.put(s.vm(id, "config"), form)
		s.wantKey(id, "smbios1", strings.TrimPrefix(form, "smbios1="))
	})
}

// TestPendingDrives: media and drives.
func TestPendingDrives(t *testing.T) {
	story(t, "wait with the end of a CD-ROM drive, not with another medium", 0, func(t *testing.T, s *server) {
		iso := s.tinyISO()
		id := s.newVM("ide2="+iso+",media=cdrom", "boot=c")
		s.start(id)
		for _, value := range []string{"none,media=cdrom", iso + ",media=cdrom", "none,media=cdrom"} {
			s.put(s.vm(id, "config"), "ide2="+value)
			wantPrefix(t, value, s.now(id, "ide2"))
			s.wantWaiting(id, nil)
		}
		s.put(s.vm(id, "config"), "delete=ide2")
		s.wantWaiting(id, map[string]pendingRow{"ide2": {Value: "none,media=cdrom", Delete: "1"}})
		s.stop(id)
		s.wantKey(id, "ide2", "")
	})
	story(t, "wait with a disk in the place of a CD-ROM drive, and say so", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=none,media=cdrom", "boot=c")
		s.start(id)
		want := map[string]string{"scsi0": "hotplug problem - unable to change media type"}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "scsi0="+s.disk()), refused, want)
		must.Hold(t, s.waiting(id)["scsi0"].Pending != "", "it is not pending")
	})
}

func (s *server) tinyISO() (volid string) {
	s.t.Helper()
	name := s.isoName()
	s.uploadOK(iso(), file(name, strings.Repeat("\x00", 2048)))
	return s.place.isoStorage + ":iso/" + name
}

// TestHotplug: disks can be plugged and unplugged while a VM runs; a boot disk can't be unplugged.
func TestHotplug(t *testing.T) {
	story(t, "of a SCSI disk asks no guest", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "boot=order=scsi0")
		s.start(id)
		s.put(s.vm(id, "config"), "scsi1="+s.disk()+",serial=hot")
		volid := s.volid(id, "scsi1")
		same(t, volid+",serial=hot,size=1G", s.now(id, "scsi1"))
		s.put(s.vm(id, "config"), "delete=scsi1")
		got := []string{s.now(id, "scsi1"), s.now(id, "unused0")}
		must.Hold(t, cmp.Equal(got, []string{"", volid}), "%q", got)
	})
	story(t, "refuses to unplug a boot disk, but does it when the VM stops", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "boot=order=scsi0;scsi1")
		volid := s.volid(id, "scsi0")
		s.start(id)
		want := map[string]string{"scsi0": "hotplug problem - can't unplug bootdisk 'scsi0'"}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "delete=scsi0"), refused, want)
		// It is also removed from the boot order, at once and for good.
		got := s.waiting(id)
		must.Hold(t, len(got) == 2 && got["scsi0"].Delete == "1" && got["boot"].Pending == "order=scsi1", "%+v", got)
		s.put(s.vm(id, "config"), "description="+marker+" again") // does not retry it
		must.Hold(t, s.now(id, "scsi0") != "", "scsi0 is gone")
		s.stop(id)
		s.wantKeys(id, map[string]string{"scsi0": "", "unused0": volid})
	})
	story(t, "that was refused is forgotten with revert, its boot order is not", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "boot=order=scsi0;scsi1")
		before := s.config(id)["scsi0"]
		s.start(id)
		r := s.do(http.MethodPut, s.vm(id, "config"), "delete=scsi0")
		must.Be(t, r.Code == http.StatusBadRequest, "%s %s", r.Status, r.Body)
		s.put(s.vm(id, "config"), "revert=scsi0")
		s.wantWaiting(id, map[string]pendingRow{"boot": {Value: "order=scsi0;scsi1", Pending: "order=scsi1"}})
		s.put(s.vm(id, "config"), "revert=boot")
		s.stop(id)
		s.wantKeys(id, map[string]string{"scsi0": before, "boot": "order=scsi0;scsi1"})
	})
}

// TestUnplug: what Proxmox checks before it removes a device for good.
func TestUnplug(t *testing.T) {
	story(t, "of a network card asks the guest", 0, func(t *testing.T, s *server) {
		id := s.newVM("net0=virtio,bridge="+s.place.bridge, "boot=c")
		s.start(id)
		r := s.do(http.MethodPut, s.vm(id, "config"), "delete=net0")
		if r.Code == http.StatusOK && s.sim == nil {
			s.skipf("needs firmware that holds on to a network card: this one let go of it")
		}
		want := map[string]string{"net0": "hotplug problem - error on hot-unplugging device 'net0' - still busy in guest?"}
		wantRefusal(t, r, refused, want)
		same(t, "1", s.waiting(id)["net0"].Delete)
		s.put(s.vm(id, "config"), "revert=net0")
		s.wantWaiting(id, nil)
	})
	story(t, "by force frees the disk", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "boot=order=scsi0")
		volid := s.volid(id, "scsi1")
		s.start(id)
		s.put(s.vm(id, "config"), "delete=scsi1", "force=1")
		must.Hold(t, s.row(volid) == nil && !strings.Contains(s.now(id, "unused0"), volid), "%s is still there", volid)
	})
}

// TestResize: what recast needs of it to grow a disk.
func TestResize(t *testing.T) {
	story(t, "grows a disk of a VM that is off, and of one that runs", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		volid := s.volid(id, "scsi0")
		e := s.taskOK(http.MethodPut, s.vm(id, "resize"), "disk=scsi0", "size=2G", "digest="+s.config(id)["digest"])
		same(t, "resize", e.kind())
		same(t, volid+",size=2G", s.now(id, "scsi0"))
		s.start(id)
		s.taskOK(http.MethodPut, s.vm(id, "resize"), "disk=scsi0", "size=+1G")
		same(t, volid+",size=3G", s.now(id, "scsi0"))
		s.stop(id)
	})
	story(t, "checks in its task, not before it", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "ide2=none,media=cdrom")
		for _, c := range []struct{ disk, size, digest, exit string }{
			{"scsi0", "512M", "", "shrinking disks is not supported"},
			{"scsi1", "2G", "", "disk 'scsi1' does not exist"},
			{"ide2", "2G", "", "you can't resize a cdrom"},
			{"scsi0", "2G", strings.Repeat("0", 40), "checksum mismatch (file change by other user?)"},
			{"scsi0", "1G", "", "OK"}, // it has that
		} {
			form := []string{"disk=" + c.disk, "size=" + c.size}
			if c.digest != "" {
				form = append(form, "digest="+c.digest)
			}
			wantExit(t, s.task(http.MethodPut, s.vm(id, "resize"), form...), c.exit)
		}
	})
}

// TestJoinPool: a VM that is there is put into a pool, or moved to it.
func TestJoinPool(t *testing.T) {
	story(t, "adds a VM once", 0, func(t *testing.T, s *server) {
		s.holds("/pool/"+s.place.pool, "Pool.Allocate")
		id := s.newVM()
		if s.poolOf(id) != "" {
			s.put("/pools", "poolid="+s.place.pool, "vms="+itoa(id), "delete=1")
		}
		s.put("/pools", "poolid="+s.place.pool, "vms="+itoa(id), "allow-move=1")
		same(t, s.place.pool, s.poolOf(id))
		wantRefusal(t, s.do(http.MethodPut, "/pools", "poolid="+s.place.pool, "vms="+itoa(id), "allow-move=1"), "500 update pools failed: VM "+itoa(id)+" is already a pool member", nil)
	})
}

// TestChangeHA: settings of a resource that is there.
func TestChangeHA(t *testing.T) {
	story(t, "changes what is given and leaves the rest", 0, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("ignored")
		sid := haResources + "/vm:" + itoa(id)
		s.put(sid, "max_restart=3")
		got := object(t, s.get(sid))
		same(t, "ignored", text(got["state"]))
		same(t, "3", text(got["max_restart"]))
		s.put(sid, "max_restart=3") // twice is no error
	})
}

// migratable is a VM whose disk both nodes see.
func (s *server) migratable(form ...string) int {
	s.t.Helper()
	s.holds("/vms", "VM.Migrate")
	return s.newVM(append(form, "scsi0="+s.place.sharedStorage+":1")...)
}

// on2 is the path of a VM on the other node.
func (s *server) on2(id int, what string) string {
	return "/nodes/" + s.place.node2 + "/qemu/" + itoa(id) + "/" + what
}

func strs(v any) []string {
	var out []string
	list, _ := v.([]any)
	for _, one := range list {
		out = append(out, text(one))
	}
	return out
}

// TestMigrationPreconditions: what recast reads before it migrates a VM.
func TestMigrationPreconditions(t *testing.T) {
	read := func(s *server, id int) map[string]any {
		return object(s.t, s.get(s.vm(id, "migrate"), "target="+s.place.node2))
	}
	story(t, "allow a VM on a shared storage to go", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		got := read(s, id)
		must.Hold(t, slices.Contains(strs(got["allowed_nodes"]), s.place.node2) && len(strs(got["local_resources"])) == 0 &&
			text(got["running"]) == "0", "%v", got)
		disks, _ := got["local_disks"].([]any)
		must.Hold(t, len(disks) == 0, "local disks: %v", disks)
	})
	story(t, "name local disks", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable("scsi1=" + s.disk())
		if s.sim == nil && s.place.storage == s.place.sharedStorage {
			s.skipf("needs another PVE_STORAGE than PVE_SHARED_STORAGE")
		}
		disks, _ := read(s, id)["local_disks"].([]any)
		must.Be(t, len(disks) == 1, "%v", disks)
		same(t, s.volid(id, "scsi1"), text(object(t, disks[0])["volid"]))
	})
}

// TestMigrate: a VM moves with its configuration, which keeps its digest.
func TestMigrate(t *testing.T) {
	story(t, "moves a VM that is off, and one that runs", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		before := s.config(id)
		same(t, "qmigrate", s.taskOK(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2).kind())
		after := object(t, s.get(s.on2(id, "config")))
		for _, key := range []string{"digest", "scsi0", "smbios1"} {
			same(t, before[key], text(after[key]))
		}
		s.taskOK(http.MethodPost, s.on2(id, "migrate"), "target="+s.place.node)
		s.start(id)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2), "500 can't migrate running VM without --online", nil)
		s.taskOK(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2, "online=1")
		same(t, "running", text(object(t, s.get(s.on2(id, "status/current")))["status"]))
		s.taskOK(http.MethodPost, s.on2(id, "migrate"), "target="+s.place.node, "online=1")
		s.stop(id)
	})
	story(t, "refuses at once", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node), refused, map[string]string{"target": "target is local node."})
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target=recast-no-such-node"), "500 no such cluster node 'recast-no-such-node'", nil)
	})
	story(t, "without quorum it does nothing", simulated, func(t *testing.T, s *server) {
		id := s.migratable()
		s.sim.world.SetQuorum(false)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "migrate")), "500 cluster not ready - no quorum?", nil)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2), "500 cluster not ready - no quorum?", nil)
		s.sim.world.SetQuorum(true)
	})
}
