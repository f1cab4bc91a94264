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
