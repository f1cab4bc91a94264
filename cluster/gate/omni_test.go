package gate

// ofOmni has a machine join Omni by a kernel argument, with that schematic in its image.
func ofOmni(schematic string) func(*scene) {
	return func(s *scene) {
		s.Plan.Found.Machine.ConfigArgs, s.Plan.Found.Machine.Schematic.YAML = []string{"siderolink.api=x"}, schematic
	}
}
