package pve

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

func TestStorages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.node(t, "pve1")
		pve1.on("GET /storage", data(`[{"storage":"thin","type":"lvmthin","content":"images","digest":"d"},{"storage":"ceph","type":"rbd","shared":1},
			{"storage":"nas","type":"nfs","shared":"1"},{"storage":"local","type":"dir","shared":0}]`), raw("595 No route to host", ""))
		c := s.client(t, "pve1")
		got, err := c.Storages(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []cluster.Storage{
			{Name: "ceph", Type: "rbd", Shared: true}, {Name: "local", Type: "dir"}, {Name: "nas", Type: "nfs", Shared: true}, {Name: "thin", Type: "lvmthin"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("storages (-want +got):\n%s", diff)
		}
		if got, err := c.Storages(t.Context()); err == nil {
			t.Errorf("lists %v without an answer", got)
		}
	})
}

func TestOwnedVolumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.node(t, "pve1")
		pve1.on("GET /nodes/pve1/storage/fast/content?content=images&vmid=101",
			data(`[{"volid":"fast:vm-101-disk-1","vmid":"101","size":1},{"volid":"fast:vm-101-disk-0","vmid":101,"size":"2"}]`),
			data(`[]`), raw("500 storage 'fast' does not exist", ""))
		c := s.client(t, "pve1")
		for _, want := range [][]string{{"fast:vm-101-disk-0", "fast:vm-101-disk-1"}, nil} {
			got, err := c.OwnedVolumes(t.Context(), "pve1", "fast", 101)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
		}
		if got, err := c.OwnedVolumes(t.Context(), "pve1", "fast", 101); err == nil {
			t.Errorf("lists %v of a storage that is not there", got)
		}
	})
}
