package factoryapi

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/siderolabs/image-factory/pkg/schematic"
)

// createSchematic stores a schematic. Like the real factory it does not check that its extensions exist.
func (f *Factory) createSchematic(w http.ResponseWriter, r *http.Request) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	s, err := schematic.Unmarshal(data)
	if err != nil {
		return invalidf("%w", err)
	}
	if err := s.Validate(false); err != nil {
		return invalidf("%w", err)
	}
	id, err := s.ID()
	if err != nil {
		return err
	}
	canonical, err := s.Marshal()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.schematics[id] = canonical
	f.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}{id, string(canonical)})
}

func (f *Factory) getSchematic(w http.ResponseWriter, r *http.Request) error {
	canonical, ok := f.stored(r.PathValue("schematic"))
	if !ok {
		return missingf("schematic not found")
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(canonical)
	return err
}

func (f *Factory) stored(id string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	canonical, ok := f.schematics[id]
	return canonical, ok
}

// design is a stored schematic.
type design struct {
	schematic.Schematic
	id, yaml string
}

func (f *Factory) design(id string) (design, error) {
	canonical, ok := f.stored(id)
	if !ok {
		return design{}, missingf("schematic ID %q not found", id)
	}
	s, err := schematic.Unmarshal(canonical)
	if err != nil {
		return design{}, err
	}
	return design{Schematic: *s, id: id, yaml: string(canonical)}, nil
}
