package kube

import (
	"cmp"
	"context"
	"fmt"
	"path"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
)

var piraeusVersion = schema.GroupVersion{Group: "piraeus.io", Version: "v1"}

// linstorSatellite is the part that we read of the Piraeus operator's
// LinstorSatellite. It has its node's name and the merged
// LinstorSatelliteConfigurations (piraeus-operator,
// api/v1/linstorsatellite_types.go, storagepool.go).
type linstorSatellite struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		StoragePools []linstorPool `json:"storagePools"`
	} `json:"spec"`
}

type linstorPool struct {
	Name     string       `json:"name"`
	LVM      *linstorKind `json:"lvmPool"`
	LVMThin  *linstorKind `json:"lvmThinPool"`
	File     *linstorKind `json:"filePool"`
	FileThin *linstorKind `json:"fileThinPool"`
	ZFS      *linstorKind `json:"zfsPool"`
	ZFSThin  *linstorKind `json:"zfsThinPool"`
}

type linstorKind struct {
	VolumeGroup string `json:"volumeGroup"`
	ThinPool    string `json:"thinPool"`
	ZPool       string `json:"zPool"`
	Directory   string `json:"directory"`
}

// linstorPools finds LINSTOR's storage pools on each node. Kubernetes does not
// record which volumes are in which pool.
func (l *localScan) linstorPools(ctx context.Context, groups []metav1.APIGroup) error {
	if installed, err := supports(groups, piraeusVersion); !installed {
		return err
	}
	satellites, err := listCustom[linstorSatellite](ctx, l.Client, piraeusVersion.WithResource("linstorsatellites"), l.singleNode())
	if err != nil {
		return err
	}
	for _, s := range satellites {
		n := l.byName(s.Metadata.Name)
		if n == nil {
			continue
		}
		for _, p := range s.Spec.StoragePools {
			n.pools = append(n.pools, p.local())
		}
	}
	return nil
}

// local says where a pool is. Missing fields have the defaults of PoolName and
// DirectoryOrDefault in storagepool.go.
func (p linstorPool) local() cluster.LocalData {
	data := cluster.LocalData{Name: "linstor/" + p.Name}
	switch {
	case p.LVM != nil:
		data.Format, data.Group = cluster.FormatLVM, cmp.Or(p.LVM.VolumeGroup, p.Name)
	case p.LVMThin != nil:
		data.Format, data.Group = cluster.FormatLVM, cmp.Or(p.LVMThin.VolumeGroup, "linstor_"+cmp.Or(p.LVMThin.ThinPool, p.Name))
	case p.ZFS != nil:
		data.Format, data.Group = cluster.FormatZFS, cmp.Or(p.ZFS.ZPool, p.Name)
	case p.ZFSThin != nil:
		data.Format, data.Group = cluster.FormatZFS, cmp.Or(p.ZFSThin.ZPool, p.Name)
	case p.File != nil || p.FileThin != nil:
		dir := path.Clean("/" + cmp.Or(cmp.Or(p.File, p.FileThin).Directory, "/var/lib/linstor-pools/"+p.Name))
		data.Name, data.Path = "linstor"+dir, dir
	}
	data.What = fmt.Sprintf("LINSTOR storage pool %s (%s)", p.Name, cmp.Or(data.Path, data.Group, "of a kind that recast does not know"))
	return data
}
