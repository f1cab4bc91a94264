package world

// CreatePool makes a resource pool.
func (w *World) CreatePool(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.hasQuorum():
		return failf("create pool failed: cfs-lock 'file-user_cfg' error: no quorum!")
	case w.pools[name]:
		return failf("create pool failed: pool '%s' already exists", name)
	}
	w.pools[name] = true
	return nil
}

// JoinPool adds a VM to a pool, or moves it there: its configuration does not change (pve-manager,
// PVE/API2/Pool.pm, update_pool).
func (w *World) JoinPool(user string, id int, pool string, move bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	vm, err := w.inPools(user, id, pool)
	switch {
	case err != nil:
		return err
	case vm.pool == pool:
		return failf(poolsFailed+"VM %d is already a pool member", id)
	case vm.pool != "" && !move:
		return failf(poolsFailed+"VM %d belongs already to pool '%s'", id, vm.pool)
	}
	vm.pool = pool
	return nil
}

// LeavePool takes a VM out of a pool.
func (w *World) LeavePool(user string, id int, pool string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	vm, err := w.inPools(user, id, pool)
	switch {
	case err != nil:
		return err
	case vm.pool != pool:
		return failf(poolsFailed+"VM %d is not a pool member", id)
	}
	vm.pool = ""
	return nil
}

const poolsFailed = "update pools failed: "

// inPools returns a VM whose pool the user may change; mu must be held.
func (w *World) inPools(user string, id int, pool string) (*vm, error) {
	switch {
	case !w.hasQuorum():
		return nil, failf(poolsFailed + "cfs-lock 'file-user_cfg' error: no quorum!")
	case !w.pools[pool]:
		return nil, failf(poolsFailed+"pool '%s' does not exist", pool)
	}
	if err := w.check(user, vmPath(id), "Permissions.Modify", "VM.Allocate"); err != nil { // check_perm_modify of RPCEnvironment.pm
		return nil, err
	}
	if w.vms[id] == nil {
		return nil, failf(poolsFailed+"VM %d does not exist", id)
	}
	return w.vms[id], nil
}
