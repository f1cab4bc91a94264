package cluster

import (
	"slices"
)

// NewDisk is the blank system disk that a node gets; nil where its storage is not
// listed, which is refused.
func (o Observation) NewDisk(w Wanted, host string, system Disk) *NewDisk {
	i := slices.IndexFunc(o.Storages, func(s Storage) bool { return s.Name == system.Storage() })
	if i < 0 {
		return nil
	}
	return &NewDisk{
		Node: w.Name, Host: host, Storage: o.Storages[i],
		Bytes: int64(max(system.SizeBytes(), uint64(max(w.SystemGiB, 0))<<30)),
	}
}
