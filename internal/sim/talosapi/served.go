package talosapi

import (
	"context"
	"fmt"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"go.yaml.in/yaml/v4"
)

// served passes resources to the service in wire form. The service itself would marshal
// the YAML for every answer, which takes longer than everything else.
type served struct{ state.CoreState }

func (s served) Get(ctx context.Context, r resource.Pointer, opts ...state.GetOption) (resource.Resource, error) {
	got, err := s.CoreState.Get(ctx, r, opts...)
	if err != nil {
		return nil, err
	}
	return written(got)
}

func (s served) List(ctx context.Context, kind resource.Kind, opts ...state.ListOption) (resource.List, error) {
	list, err := s.CoreState.List(ctx, kind, opts...)
	if err != nil {
		return list, err
	}
	items := make([]resource.Resource, 0, len(list.Items))
	for _, r := range list.Items {
		w, err := written(r)
		if err != nil {
			return list, err
		}
		items = append(items, w)
	}
	return resource.List{Items: items}, nil
}

// written is protobuf.FromResource with cached YAML for equal resources.
func written(r resource.Resource) (resource.Resource, error) {
	bare, err := protobuf.FromResource(r, protobuf.WithoutYAML())
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", r.Metadata(), err)
	}
	message, err := bare.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", r.Metadata(), err)
	}
	if len(message.GetSpec().GetProtoSpec()) == 0 { // its YAML is made anew each time (cosi's pkg/resource/handle)
		return protobuf.FromResource(r)
	}
	key := writtenKey{r.Metadata().Type(), string(message.GetSpec().GetProtoSpec())}
	text, ok := writtenSpecs.get(key)
	if !ok {
		b, err := yaml.Marshal(r.Spec())
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", r.Metadata(), err)
		}
		text = string(b)
		writtenSpecs.put(key, text)
	}
	message.Spec.YamlSpec = text
	return protobuf.Unmarshal(message)
}

// writtenKey identifies a specification: its kind, and its bytes in protobuf.
type writtenKey struct {
	kind resource.Type
	spec string
}

// keptSpecs limits the cache, which all machines of the process share: at 1 KiB each, a
// few MiB.
const keptSpecs = 4096

type specs struct {
	mu    sync.Mutex
	found map[writtenKey]string
}

var writtenSpecs = specs{found: map[writtenKey]string{}}

func (s *specs) get(key writtenKey) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.found[key]
	return text, ok
}

func (s *specs) put(key writtenKey, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) >= keptSpecs {
		clear(s.found)
	}
	s.found[key] = text
}
