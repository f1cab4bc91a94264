package factory

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
)

// TestDisk: a disk image of a schematic, with its values of META; a broken download is
// continued, and the factory builds it once.
func TestDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		id, _, err := s.client.Register(t.Context(), "customization: {extraKernelArgs: [recast.lock=sha256-1], meta: [{key: 12, value: x}]}\n")
		if err != nil {
			t.Fatal(err)
		}
		req := images.ISORequest{SchematicID: id, Talos: talos, Platform: "nocloud", Arch: "amd64"}
		want, err := s.fetchBy(t.Context(), req, s.client.Disk)
		if err != nil {
			t.Fatal(err)
		}
		s.factory.Strike(1, "/image/", factoryapi.Cut(cutAt))
		start := time.Now()
		got, err := s.fetchBy(t.Context(), req, s.client.Disk)
		if err != nil || !bytes.Equal(got, want) || time.Since(start) != time.Second {
			t.Errorf("%d bytes, want %d, after %s; %v", len(got), len(want), time.Since(start), err)
		}
		s.said(t, []string{off + first}, nil, "", "")
		s.built(t, "disk "+id+" v1.13.9 nocloud-amd64")
		disk, err := diskimage.Open(bytes.NewReader(got), int64(len(got)))
		if err != nil {
			t.Fatal(err)
		}
		values := []diskimage.Value{{Key: 0xc, Value: "x"}, {Key: 0x11, Value: "dual-boot"}}
		if len(disk.Meta) != 2 || disk.Meta[0] != values[0] || disk.Meta[1] != values[1] || !disk.BIOS {
			t.Errorf("META %v, BIOS %t", disk.Meta, disk.BIOS)
		}
		if disk.ESP.UKI.Talos != talos || !bytes.Contains([]byte(disk.ESP.UKI.Cmdline), []byte(" recast.lock=sha256-1")) {
			t.Errorf("Talos %s, arguments %q", disk.ESP.UKI.Talos, disk.ESP.UKI.Cmdline)
		}
		if link := s.client.DiskURL(req); link != s.client.base.String()+"/image/"+id+"/v1.13.9/nocloud-amd64.qcow2" {
			t.Errorf("URL %s", link)
		}
	})
}

// TestDiskRebuilt: a disk image that was built again has other bytes.
func TestDiskRebuilt(t *testing.T) {
	t.Parallel()
	d := &download{what: diskImage.title, explain: func(err error) error { return err }}
	err := d.differs()
	if err == nil || err.Error() != "after the download broke off, the factory sends another disk image than before" || len(fault.Hints(err)) != 1 {
		t.Error(err, fault.Hints(err))
	}
}
