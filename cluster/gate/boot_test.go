package gate

// prepared is a node whose new system disk is made from a disk image, which only some hosts' storages have.
func prepared(there bool) func(*scene) {
	return func(s *scene) {
		s.Plan.Prepared = "new.qcow2"
		s.Want.Build.DiskName, s.Want.DiskStorages = "new.qcow2", []string{"images"}
		if there {
			s.PX.Volumes = append(s.PX.Volumes, "images:import/new.qcow2")
		}
	}
}

// bootRows test that a new machine finds something to boot.
func bootRows() []row {
	return []row{
		{Do: "recreate", Change: prepared(false), Err: "disk image new.qcow2 is on none of images"},
		{Do: "recreate", Change: prepared(true)},
		{Do: "resume", Change: prepared(false)}, // it was prepared before
	}
}
