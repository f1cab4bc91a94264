package pveapi

// cephStatus is what "ceph status" says, with the health of "ceph health detail" (pve-manager, PVE/Ceph/Tools.pm,
// ceph_cluster_status).
func cephStatus(c *call) (any, error) {
	ceph, err := c.Ceph()
	if err != nil {
		return nil, err
	}
	checks := object{}
	for code, check := range ceph.Checks {
		checks[code] = object{
			"severity": check.Severity, "muted": false, "detail": []object{{"message": check.Message}},
			"summary": object{"message": check.Message, "count": 1},
		}
	}
	return object{
		"fsid": "8e3bd9f2-0b9c-4f0e-9d3a-3a6f5f1f2c11", "quorum": []int{0, 1, 2}, "quorum_names": []string{"pve1", "pve2", "pve3"},
		"health": object{"status": ceph.Health(), "checks": checks, "mutes": []object{}},
	}, nil
}
