package world

import "strconv"

// userConfigLock is the error of locking user.cfg, which includes pools, without quorum.
const userConfigLock = "cfs-lock 'file-user_cfg' error: no quorum!"

// CreatePool makes a resource pool.
func (w *World) CreatePool(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.hasQuorum():
		return failf("create pool failed: %s", userConfigLock)
	case w.pools[name]:
		return failf("create pool failed: pool '%s' already exists", name)
	}
	w.pools[name] = true
	return nil
}

// DeletePool removes an empty resource pool.
func (w *World) DeletePool(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.hasQuorum():
		return failf("delete pool failed: %s", userConfigLock)
	case !w.pools[name]:
		return failf("delete pool failed: pool '%s' does not exist", name)
	}
	for _, id := range w.vmids() {
		if w.vms[id].pool == name {
			return failf("delete pool failed: pool '%s' is not empty (contains VMID %s)", name, strconv.Itoa(id))
		}
	}
	delete(w.pools, name)
	return nil
}

// JoinPool adds a VM to a pool, like PUT /pools: its configuration does not change.
func (w *World) JoinPool(id int, pool string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.pools[pool] {
		return failf("pool '%s' does not exist", pool)
	}
	vm, ok := w.vms[id]
	if !ok {
		return failf("VM %d does not exist", id)
	}
	vm.pool = pool
	return nil
}
