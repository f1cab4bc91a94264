package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/clustertest/vmsetting"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestAddedDisksAreLookedUp: an added drive of a running VM is a pod's only if Kubernetes lists it.
// If Kubernetes does not answer, the comparison fails.
func TestAddedDisksAreLookedUp(t *testing.T) {
	t.Parallel()
	before := cluster.VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0"}}
	now := before
	now.Running, now.Config = true, map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": "fast:vm-9999-media"}
	silent := errors.New("no answer")
	type row struct {
		handles []string
		err     error
		alone   bool // Pods is nil
		pod     bool
	}
	must.Each(t, map[string]row{
		"a pod's":     {handles: []string{"lab/pve1/fast/vm-9999-media"}, pod: true},
		"not a pod's": {handles: []string{"lab/pve1/fast/vm-9999-other"}},
		"no answer":   {err: silent},
		"Pods is nil": {handles: []string{"lab/pve1/fast/vm-9999-media"}, alone: true},
	}, func(t *testing.T, c row) {
		r := &Replace{VM: before, Pods: func(context.Context) ([]string, error) { return c.handles, c.err }}
		if c.alone {
			r.Pods = nil
		}
		vm := now
		disks := must.Get(before.Disks())(t)
		must.FailIs(t, r.knowPods(t.Context(), &vm, disks), c.err)
		have := must.Get(vm.Disks())(t)
		must.Equal(t, "a pod's", c.pod, len((&Replace{}).addedDrives(vm, disks, have)) == 0)
	})
}

// TestTakeOut: a drive is to be taken out only of a VM that is off, and so that its volume stays.
func TestTakeOut(t *testing.T) {
	t.Parallel()
	own, theirs := cluster.Disk{Key: "scsi3", Volid: "fast:vm-101-disk-3", Owner: 101}, cluster.Disk{Key: "scsi4", Volid: "fast:vm-200-disk-0", Owner: 200}
	off, protected, on := map[string]string{}, map[string]string{"protection": "1"}, map[string]string{}
	for name, c := range map[string]struct {
		disk    cluster.Disk
		config  map[string]string
		running bool
		want    string
	}{
		"its own":           {own, off, false, "qm disk move 101 scsi3 --target-vmid OTHER"},
		"another's":         {theirs, off, false, "qm set 101 --delete scsi4 leaves fast:vm-200-disk-0 with its owner"},
		"of a protected VM": {theirs, protected, false, "qm set 101 --protection 0 && qm set 101 --delete scsi4 leaves"},
		"of one that runs":  {theirs, on, true, "qm config 101 shows it; it may be in use while the VM runs"},
		"its own, it runs":  {own, on, true, "qm disk move 101 scsi3"}, // Proxmox moves none of a VM that runs
	} {
		got := takeOut(cluster.VM{ID: 101, Host: "pve1", Config: c.config, Running: c.running}, c.disk)
		must.Hold(t, strings.HasPrefix(got, c.want), "%s: %s", name, got)
	}
}

func TestForeignDisks(t *testing.T) {
	t.Parallel()
	before := map[string]string{"scsi0": "fast:vm-9031-disk-0,size=10G", "ide2": "none,media=cdrom", "name": "wk1"}
	type row struct {
		now  map[string]string
		want string
	}
	must.Each(t, map[string]row{
		"as before":               {before, ""},
		"a pod's, by its name":    {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-pvc-0b5f"}, "scsi7 (fast:vm-9999-pvc-0b5f)"},
		"named otherwise":         {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-data-1"}, "scsi7 (fast:vm-9999-data-1)"},
		"under the VM's own name": {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9031-disk-9"}, "scsi7 (fast:vm-9031-disk-9)"},
		"a CD":                    {map[string]string{"scsi0": before["scsi0"], "ide0": "isos:iso/talos.iso,media=cdrom"}, ""},
	}, func(t *testing.T, c row) {
		got := must.Get(ForeignDisks(cluster.VM{ID: 9031, Config: c.now}, parking.Memory{VM: cluster.VM{ID: 9031, Config: before}}))(t)
		must.Equal(t, "-want +got", c.want, DiskNames(got))
	})
}

// busyStorage can't rename a volume until a time.
type busyStorage struct {
	*guarded
	until time.Time
}

func (b busyStorage) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	if time.Now().Before(b.until) {
		return fmt.Errorf("dataset is busy: %w", cluster.ErrStorageBusy)
	}
	return b.guarded.MoveDisk(ctx, vm, key, to, toKey)
}

// TestBusyStorage: a disk is handed over once its storage can rename the volume, if that is soon.
func TestBusyStorage(t *testing.T) {
	t.Parallel()
	type row struct {
		busy, took time.Duration
		moved      bool
		said       int
	}
	must.Bubbles(t, map[string]row{
		"it is free":     {0, 0, true, 0},
		"it is soon":     {15 * time.Second, 20 * time.Second, true, 1},
		"it stays busy":  {time.Hour, busyFor, false, 6},
		"it is too late": {busyFor + time.Second, busyFor, false, 6},
	}, func(t *testing.T, c row) {
		g := newGuarded()
		all(here, volumes("fast:vm-101-disk-0", "fast:vm-101-disk-1"))(g)
		g.recorded()
		began := time.Now()
		var said []string
		px := busyStorage{g, began.Add(c.busy)}
		say := func(in parking.Intent, text string) { said = append(said, in.Key+": "+text) }
		rec := openRecord{px: px, id: 9900, run: "r1", node: "wk1", late: new(Late)}
		m := mover{px: px, record: rec, host: "pve1", say: say}
		err := m.do(t.Context(), intent, nil)
		must.Hold(t, c.moved == (err == nil) && (c.moved || errors.Is(err, cluster.ErrStorageBusy)), "err = %v", err)
		moved, took := slices.Contains(g.Done, "move scsi1 of 101 to scsi1 of 9900"), time.Since(began)
		must.Hold(t, moved == c.moved && took == c.took && len(said) == c.said,
			"moved %t after %s, said %q", moved, took, said)
	})
}

// recordLab returns an open record with these requests, and the Proxmox that notes what is done.
func recordLab(t *testing.T, sent parking.Sent) (*clustertest.Proxmox, openRecord) {
	t.Helper()
	rec := parking.Record{Cluster: "lab", Node: "cp1", Run: "r1", VMID: 101, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes, ControlPlane: true, Sent: sent}
	description := must.Get(rec.Description())(t)
	px := clustertest.NewProxmox(cluster.VM{ID: 9900, Host: "pve1", Config: map[string]string{"description": description}})
	return px, openRecord{px: px, id: 9900, run: "r1", node: "cp1", late: new(Late)}
}

// lateLab returns an exchange with that record.
func lateLab(t *testing.T, sent parking.Sent) (*clustertest.Proxmox, *Replace) {
	t.Helper()
	px, rec := recordLab(t, sent)
	return px, &Replace{Proxmox: px, Strategy: cluster.Recreate, Run: "r1", VM: cluster.VM{ID: 101, Host: "pve1"}, Parking: 9900, Late: rec.late}
}

// TestSending: a request is recorded before it is sent, and removed only on its own answer.
func TestSending(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("504: %w", cluster.ErrLostAnswer)
	type row struct {
		before parking.Sent
		err    error
		late   bool // the adapter says that it may still be carried out
		cancel bool
		stays  bool
	}
	must.Each(t, map[string]row{
		"done":                           {},
		"refused":                        {err: errors.New("500 no")},
		"no answer":                      {err: lost, stays: true},
		"done, perhaps by another":       {late: true, stays: true},
		"the sender is cancelled":        {cancel: true, stays: true},
		"the claim is lost":              {err: fault.As(fault.Claimed, errors.New("it is another run's")), stays: true},
		"an earlier one has no answer":   {before: parking.Sent{cluster.SentShutdown: 600}, stays: true},
		"another request has no answer":  {before: parking.Sent{SentStart: 600}},
		"its end was not seen":           {err: context.DeadlineExceeded, stays: true},
		"an earlier one, and this, lost": {before: parking.Sent{cluster.SentShutdown: 600}, err: lost, stays: true},
	}, func(t *testing.T, c row) {
		px, r := recordLab(t, c.before)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := r.sending(ctx, cluster.SentShutdown, time.Minute+LateQueue, func(ctx context.Context) error {
			_, rec, err := r.read(ctx)
			must.Hold(t, err == nil && rec.Sent[cluster.SentShutdown] >= 360,
				"when it is sent the record has %v, %v", rec.Sent, err)
			if c.late {
				cluster.NoteUnanswered(ctx)
			}
			if c.cancel {
				cancel()
			}
			px.Done = append(px.Done, "send")
			return c.err
		})
		must.FailIs(t, err, c.err)
		_, rec, err := r.read(t.Context())
		_, has := rec.Sent[cluster.SentShutdown]
		must.Hold(t, err == nil && has == c.stays, "afterwards the record has %v, %v", rec.Sent, err)
		_, had := c.before[SentStart]
		must.Hold(t, had == (rec.Sent[SentStart] == 600), "the other request: %v", rec.Sent)
		written := 1
		if c.before[cluster.SentShutdown] > 0 {
			written = 0
		}
		must.Equal(t, "changes before it is sent", written, slices.Index(px.Done, "send"))
	})
}

// TestLateIsWaitedOut: this process measures the time, from its first look on. A request that can't
// come any more leaves the record with the next change.
func TestLateIsWaitedOut(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		_, r := lateLab(t, parking.Sent{SentDelete: 300, SentStart: 100})
		var said []string
		r.Say = func(id, text string) { said = append(said, id+": "+text) }
		began := time.Now()
		wait := func(which string, want time.Duration) {
			t.Helper()
			must.Do(t, r.record().await(t.Context(), r.saying("free-blank"), which))
			must.Equal(t, which+" is over after", want, time.Since(began).Round(2*time.Second))
		}
		wait(cluster.SentAddHA, 0)
		wait(SentStart, 100*time.Second)
		wait(SentDelete, 300*time.Second)
		wait(SentDelete, 300*time.Second)
		must.Hold(t, len(said) == 2 && strings.HasPrefix(said[1], "bring-up/free-blank: ") && strings.Contains(said[1], "delete of VM 101 that run r1 or an earlier one sent"),
			"said %q", said)
		must.Do(t, r.record().update(t.Context(), (*parking.Record).Close))
		_, rec, err := r.record().read(t.Context())
		must.Hold(t, err == nil && len(rec.Sent) == 0 && !rec.Open, "record %+v, %v", rec, err)
	})
}

// temporaryVM has one more VM, until a time.
type temporaryVM struct {
	*clustertest.Proxmox
	vm    cluster.VM
	until time.Time
}

func (g *temporaryVM) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	if id == g.vm.ID && time.Now().Before(g.until) {
		return g.vm, nil
	}
	return g.Proxmox.VMConfig(ctx, id)
}

// TestDeleteWaitsForTheOneBefore: a second delete would free the VMID for another VM, which the
// late first one would delete.
func TestDeleteWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	type row struct {
		sent parking.Sent
		gone time.Duration // when the VM is deleted; 0: never
		want time.Duration
	}
	must.Bubbles(t, map[string]row{
		"none was sent":          {nil, 0, 0},
		"another request":        {parking.Sent{cluster.SentShutdown: 300}, 0, 0},
		"it may come":            {parking.Sent{SentDelete: 300}, 0, 300 * time.Second},
		"it is carried out late": {parking.Sent{SentDelete: 300}, 20 * time.Second, 20 * time.Second},
	}, func(t *testing.T, c row) {
		px, r := lateLab(t, c.sent)
		began := time.Now()
		r.Proxmox = &temporaryVM{px, r.VM, began.Add(c.gone)}
		if c.gone == 0 {
			px.Guests[101] = r.VM
		}
		must.Do(t, r.awaitDelete(t.Context()))
		must.Equal(t, "it is over after", c.want, time.Since(began).Round(2*time.Second))
	})
}

// TestRequestOutlivesItsRecord: a request that may still come survives the end of its replacement
// and the start of the next.
func TestRequestOutlivesItsRecord(t *testing.T) {
	t.Parallel()
	px, r := lateLab(t, parking.Sent{cluster.SentShutdown: 360})
	must.Do(t, r.record().update(t.Context(), (*parking.Record).Close))
	_, rec, err := r.record().read(t.Context())
	must.Be(t, err == nil && !rec.Open && rec.Sent[cluster.SentShutdown] == 360 && rec.ControlPlane,
		"closed: %+v, %v", rec, err)
	mem := parking.Memory{VM: cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0"}}, SystemKey: "scsi0"}
	next, err := parking.Record{Cluster: "lab", Node: "cp1", Run: "r2"}.Opened(mem, &parking.Parking{VM: px.Guests[9900], Record: rec})
	must.Hold(t, err == nil && next.Sent[cluster.SentShutdown] == 360, "opened again: %+v, %v", next, err)
	texts := parking.Parking{VM: px.Guests[9900], Record: rec}.Unanswered()
	must.Hold(t, len(texts) == 1 && strings.Contains(texts[0], "so recast waits up to 6m0s before it takes another control plane out"),
		"unanswered: %q", texts)
}

func TestBlankDiskGrowsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	d := cluster.Disk{Key: "scsi0", Volid: "thin:vm-1-disk-0", Options: []string{"size=10240M"}}
	for gib, want := range map[int]string{0: "thin:10,serial=s,wwn=", 5: "thin:10,serial=s,wwn=", 32: "thin:32,serial=s,wwn="} {
		got := (&Replace{SystemGiB: gib, Serial: "s"}).blankDisk(d)
		must.Equal(t, fmt.Sprint(gib, " GiB wanted"), want+cluster.WWN("s"), got)
	}
}

func TestNewConfigCarriesEverythingButDisks(t *testing.T) {
	t.Parallel()
	got := must.Get(replacement().newConfig("isos:iso/recast-new.iso"))(t)
	want := map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=AB", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "onboot": "0", "protection": "1",
		"scsi0": "fast:10,discard=on,iothread=1,format=qcow2,serial=recast-1,wwn=0x37eb0b496c370925", "ide2": "isos:iso/recast-new.iso,media=cdrom",
		"ide0": "fast:cloudinit,format=qcow2", "boot": "order=scsi0;ide2;scsi1;net0", "scsihw": "virtio-scsi-single", "pool": "talos",
		"description": "mine\nrecast: run=r1 build=b1",
	}
	must.Equal(t, "got", want, got)
}

func TestNewConfigRefusesBeforeAnythingIsGone(t *testing.T) {
	t.Parallel()
	r := replacement()
	r.VM.Config["description"] = strings.Repeat("x", cluster.MaxDescription)
	if _, err := r.newConfig("isos:iso/recast-new.iso"); err == nil {
		t.Error("Proxmox would refuse this description after the old VM was deleted")
	}
	r = replacement()
	r.Disks[1].System = false
	if _, err := r.newConfig("isos:iso/recast-new.iso"); err == nil {
		t.Error("a VM without a system disk was accepted")
	}
}

func oldVM() cluster.VM {
	return cluster.VM{ID: 9011, Name: "wk1", Host: "pve1", Pool: "talos", Config: map[string]string{
		"name": "wk1", "memory": "4096", "smbios1": "uuid=AB", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "onboot": "1",
		"scsi0": "fast:9011/vm-9011-disk-0.qcow2,discard=on,iothread=1,serial=old,size=10G", "scsi1": "fast:9011/vm-9011-disk-1.raw,serial=data,size=20G",
		"efidisk0": "fast:9011/vm-9011-disk-2.raw,efitype=4m,size=528K", "ide2": "isos:iso/recast-old.iso,media=cdrom,size=300M",
		"ide0": "fast:9011/vm-9011-cloudinit.qcow2,media=cdrom,size=4M", "boot": "order=scsi1;scsi0;net0",
		"description": "mine", "tags": "talos", "vmgenid": "x", "meta": "creation-qemu=9", "scsihw": "virtio-scsi-single",
	}}
}

func replacement() *Replace {
	return &Replace{
		Run: "r1", Build: "b1", VM: oldVM(), Serial: "recast-1", Parking: 9090,
		Disks: []parking.ParkedDisk{{Key: "efidisk0"}, {Key: "scsi0", System: true}, {Key: "scsi1"}},
	}
}

// TestEverySettingIsCarried: the new VM gets every setting that recreate allows, or Proxmox
// generates it again. No setting turns out to be lost, or read-only, after the old VM is deleted.
func TestEverySettingIsCarried(t *testing.T) {
	t.Parallel()
	for key, setting := range vmsetting.Every {
		if setting.Fate == vmsetting.Never {
			continue
		}
		r := replacement()
		r.VM.Config[key] = setting.Value
		config := must.Get(r.newConfig("isos:iso/recast-new.iso"))(t)
		given, carried := config[key]
		must.Hold(t, carried == (setting.Fate == vmsetting.Kept) && (!carried || given == setting.Value),
			"%s: the new VM gets %q (%t), want %q %s", key, given, carried, setting.Value, setting.Fate)
	}
}

func TestTheBlankDiskHasEveryOption(t *testing.T) {
	t.Parallel()
	const names = "serial=recast-1,wwn=0x37eb0b496c370925"
	type row struct{ volid, size, want string }
	must.Each(t, map[string]row{
		"qcow2":                 {"fast:9011/vm-9011-disk-0.qcow2", "10G", "fast:10," + driveOptions + ",format=qcow2," + names},
		"raw":                   {"fast:9011/vm-9011-disk-0.raw", "10G", "fast:10," + driveOptions + ",format=raw," + names},
		"vmdk":                  {"fast:9011/vm-9011-disk-0.vmdk", "10G", "fast:10," + driveOptions + ",format=vmdk," + names},
		"a block storage":       {"thin:vm-9011-disk-0", "10G", "thin:10," + driveOptions + "," + names},
		"LVM with qcow2":        {"vg:vm-9011-disk-0.qcow2", "10G", "vg:10," + driveOptions + ",format=qcow2," + names},
		"a linked clone":        {"fast:400/base-400-disk-0.qcow2/9011/vm-9011-disk-0.qcow2", "10G", "fast:10," + driveOptions + ",format=qcow2," + names},
		"megabytes":             {"thin:vm-9011-disk-0", "10752M", "thin:10.5," + driveOptions + "," + names},
		"kilobytes":             {"thin:vm-9011-disk-0", "10485764K", "thin:10.000003814697266," + driveOptions + "," + names},
		"terabytes":             {"thin:vm-9011-disk-0", "2T", "thin:2048," + driveOptions + "," + names},
		"bytes":                 {"thin:vm-9011-disk-0", "10737418240", "thin:10," + driveOptions + "," + names},
		"decimals":              {"thin:vm-9011-disk-0", "1.5G", "thin:1.5," + driveOptions + "," + names},
		"an odd size, imported": {"thin:vm-9011-disk-0", "10737418241", "thin:10.000000000931323," + driveOptions + "," + names},
	}, func(t *testing.T, tc row) {
		d := must.Get(cluster.ParseDisk("scsi0", tc.volid+","+driveOptions+",serial=old,wwn=0x5000c50015ea71aa,size="+tc.size))(t)
		got := (&Replace{Serial: "recast-1"}).blankDisk(d)
		must.Equal(t, "got", tc.want, got)
		// Proxmox multiplies by 2^20 and rounds up to whole KiB (pve-common, Tools.pm, convert_size).
		blank := must.Get(cluster.ParseDisk("scsi0", strings.Replace(got, ":", ":x,size=", 1)))(t)
		if gib := (cluster.Disk{Options: []string{"size=" + blank.Option("size") + "G"}}); gib.SizeBytes() < d.SizeBytes() {
			t.Errorf("%s makes a disk of %d bytes, smaller than %d", got, gib.SizeBytes(), d.SizeBytes())
		}
	})
}

func TestTheNewBootOrder(t *testing.T) {
	t.Parallel()
	for old, want := range map[string]string{
		"":                               "order=scsi0;ide2",
		"order=scsi1;scsi0;net0":         "order=scsi0;ide2;scsi1;net0",
		"cdn":                            "order=scsi0;ide2", // which is Proxmox's default too, and names no device
		"c":                              "order=scsi0;ide2",
		"legacy=cdn":                     "order=scsi0;ide2",
		"legacy=c,order=scsi0;net0":      "order=scsi0;ide2;net0",
		"order=scsi0;net0,legacy=c":      "order=scsi0;ide2;net0",
		"order=scsi0;hostpci0;usb1;net9": "order=scsi0;ide2;hostpci0;usb1;net9",
		" ":                              "order=scsi0;ide2", // of a VM whose disks were all reassigned
		"order= ":                        "order=scsi0;ide2",
		"order=scsi0;net0;net0":          "order=scsi0;ide2;net0",
	} {
		must.Equal(t, old, want, bootOrder(old, "scsi0", "ide2"))
	}
}

// driveOptions is every option that a disk can have (qemu-server, PVE/QemuServer/Drive.pm,
// $alldrive_fmt), except file, size, serial, wwn and format.
const driveOptions = "aio=native,backup=0,bps=1048576,bps_max_length=2,bps_rd=1,bps_rd_max_length=2,bps_wr=1,bps_wr_max_length=2,cache=writeback,cyls=1," +
	"detect_zeroes=0,discard=on,heads=1,iops=10,iops_max=20,iops_max_length=2,iops_rd=5,iops_rd_max=6,iops_rd_max_length=2,iops_wr=5,iops_wr_max=6," +
	"iops_wr_max_length=2,iothread=1,mbps=1.5,mbps_max=2,mbps_rd=1,mbps_rd_max=2,mbps_wr=1,mbps_wr_max=2,media=disk,model=DISK%201,product=disk one," +
	"queues=4,replicate=0,rerror=report,ro=0,scsiblock=0,secs=1,shared=1,snapshot=0,ssd=1,trans=lba,vendor=acme,werror=stop"

// TestBlankSettingIsTemporary: the VM has the setting from the blank boot until finish.
func TestBlankSettingIsTemporary(t *testing.T) {
	t.Parallel()
	for name, was := range map[string]string{"had another value": "ip=dhcp", "had none": ""} {
		vm := cluster.VM{ID: 9011, Config: map[string]string{"name": "wk1", "scsi0": "fast:vm-9011-disk-0,size=10G", "smbios1": "uuid=a"}}
		if was != "" {
			vm.Config["ipconfig0"] = was
		}
		mem := parking.Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab", Blank: &cluster.BlankSetting{Key: "ipconfig0", Value: "ip=10.0.0.31/24"}}
		packed := must.Get(mem.Pack())(t)
		mem = must.Get(parking.UnpackMemory(packed))(t) // as if another machine resumed
		rec := parking.Record{Strategy: cluster.Recreate, Disks: []parking.ParkedDisk{{Key: "scsi0", System: true}}}
		r := Of(nil, mem, rec, 9900)
		made := must.Get(r.newConfig("isos:iso/a.iso"))(t)
		back, _, err := r.oldConfig()
		must.Do(t, err)
		must.Equal(t, name+": new VM and restored VM", []string{"ip=10.0.0.31/24", was}, []string{made["ipconfig0"], back["ipconfig0"]})
	}
}

// TestReplaceWithoutItsPreparedDisk: the node is down, so the error says how its old system disk comes back.
func TestReplaceWithoutItsPreparedDisk(t *testing.T) {
	t.Parallel()
	_, err := calls["give"].run(t, on(9900, kv{"scsi29": ""}), clustertest.Which{})
	must.Contain(t, "the hints", strings.Join(fault.Hints(err), "; "), "recast undo wk1 gives the VM its old system disk back")
}
