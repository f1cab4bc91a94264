package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one line of a gate that lets through what it refused. All of them are
// compiled at once, and the environment says which one a process has.
type mutant struct {
	id   int
	room int
	at   token.Position
	gate string // the function
	what string // what of it, and what that is instead
}

// variable has the ID of the mutant.
const variable = "RECAST_GATE_MUTANT"

// helper is a file that each room gets.
const helper = `package %s

import (
	"context"
	"os"
	"strconv"
)

var gateMutant, _ = strconv.Atoi(os.Getenv("` + variable + `"))

func gateOff(id int) bool { return id == gateMutant }

func gateDrop(id int, err error) error {
	if gateOff(id) {
		return nil
	}
	return err
}

func gateCell[T ~int](id int, is T) T {
	if gateOff(id) {
		return is + 1
	}
	return is
}

func gateFlag(id, is int) int {
	if gateOff(id) {
		return 0
	}
	return is
}

func gateFunc(id int, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return gateDrop(id, do(ctx)) }
}
`

// mutator finds the mutants of one file, and where they change it.
type mutator struct {
	fset    *token.FileSet
	source  []byte
	gate    string
	inserts []insert
	found   []mutant
	next    int
}

type insert struct {
	at   int
	text string
}

// mutate returns the sources of a room with all of its mutants in them, by their
// paths. IDs begin with next.
func mutate(root string, number, next int) (files map[string][]byte, found []mutant, err error) {
	r := rooms[number]
	paths, err := filepath.Glob(filepath.Join(root, r.dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	files = map[string][]byte{}
	unseen := r.names()
	pkg := ""
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		m := &mutator{fset: token.NewFileSet(), source: source, next: next + len(found)}
		file, err := parser.ParseFile(m.fset, filepath.Join(r.dir, filepath.Base(path)), source, 0)
		if err != nil {
			return nil, nil, err
		}
		pkg = file.Name.Name
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Body != nil {
					m.function(d, r.names())
					delete(unseen, name(d))
				}
			case *ast.GenDecl:
				if m.table(d, r.names()) {
					delete(unseen, m.gate)
				}
			}
		}
		for i := range m.found {
			m.found[i].room = number
		}
		found = append(found, m.found...)
		if len(m.found) > 0 {
			files[path] = m.mutated()
		}
	}
	if len(unseen) > 0 {
		return nil, nil, fmt.Errorf("%s has no %s: say in internal/tools/cmd/gatemutants/gates.go where that is now", r.dir, strings.Join(slices.Sorted(maps.Keys(unseen)), ", "))
	}
	files[filepath.Join(root, r.dir, "gatemutant.go")] = fmt.Appendf(nil, helper, pkg)
	return files, found, nil
}

func name(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	return fmt.Sprint(t) + "." + fn.Name.Name
}

// required says whether something goes by the name of a gate.
func required(name string) bool {
	rest, is := strings.CutPrefix(strings.ToLower(name[:1])+name[1:], "require")
	return is && (rest == "" || rest[0] >= 'A' && rest[0] <= 'Z')
}

// function adds the mutants of a function: calls of gates in any, and each condition of a gate.
func (m *mutator) function(fn *ast.FuncDecl, gates map[string]bool) {
	m.gate = name(fn)
	gate := gates[m.gate] || required(fn.Name.Name)
	called := map[ast.Expr]bool{}
	dropped, refusals := map[ast.Expr]bool{}, map[ast.Expr]bool{}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			called[n.Fun] = true
			if required(last(n.Fun)) {
				if !dropped[n] {
					m.drop(n)
				}
			} else if gate && types.ExprString(n.Fun) == "errors.Join" && !n.Ellipsis.IsValid() && !refusals[n] {
				for _, arg := range n.Args {
					dropped[arg] = true
					m.drop(arg)
				}
			}
		case *ast.SelectorExpr:
			if required(n.Sel.Name) && !called[n] && last(n.X) != n.Sel.Name {
				m.wrap(n, "gateFunc(%d, ", ")", "not asked")
				return false
			}
		case *ast.IfStmt:
			if gate && !asks(n) {
				m.weaken(n.Cond, permits(n.Body.List))
			}
			for _, s := range n.Body.List {
				if s, ok := s.(*ast.ReturnStmt); ok {
					for _, e := range s.Results { // it refuses: with how much does not matter
						refusals[e] = true
					}
				}
			}
		case *ast.SwitchStmt:
			for _, c := range n.Body.List {
				c := c.(*ast.CaseClause)
				for _, cond := range c.List {
					if gate && n.Tag == nil {
						m.weaken(cond, permits(c.Body))
					}
				}
			}
		}
		return true
	})
}

// table adds the mutants of a table: each cell that is a constant becomes the next of its kind, and each of joined flags
// is missing.
func (m *mutator) table(d *ast.GenDecl, gates map[string]bool) bool {
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || d.Tok != token.VAR || !gates[v.Names[0].Name] {
			continue
		}
		rows, ok := v.Values[0].(*ast.CompositeLit)
		if !ok {
			return false
		}
		for _, elt := range rows.Elts {
			kv := elt.(*ast.KeyValueExpr)
			for _, cell := range kv.Value.(*ast.CompositeLit).Elts {
				if named, ok := cell.(*ast.KeyValueExpr); ok {
					cell = named.Value
				}
				m.gate = v.Names[0].Name + " of " + types.ExprString(kv.Key)
				m.cell(cell)
			}
		}
		m.gate = v.Names[0].Name
		return true
	}
	return false
}

func (m *mutator) cell(e ast.Expr) {
	switch e := e.(type) {
	case *ast.Ident:
		m.wrap(e, "gateCell(%d, ", ")", "the next")
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			m.flag(e.X)
			m.flag(e.Y)
		}
	}
}

func (m *mutator) flag(e ast.Expr) {
	if both, ok := e.(*ast.BinaryExpr); ok {
		m.cell(both)
		return
	}
	m.wrap(e, "gateFlag(%d, ", ")", "missing")
}

// last is the last part of a name.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return "_"
}

// asks says whether a condition is that a gate refuses: its call is the mutant.
func asks(n *ast.IfStmt) bool {
	init, ok := n.Init.(*ast.AssignStmt)
	if !ok || len(init.Rhs) != 1 {
		return false
	}
	call, ok := init.Rhs[0].(*ast.CallExpr)
	return ok && required(last(call.Fun))
}

// permits says whether a branch ends without a refusal.
func permits(body []ast.Stmt) bool {
	if len(body) == 0 {
		return true
	}
	switch s := body[len(body)-1].(type) {
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE
	case *ast.ReturnStmt:
		if len(s.Results) == 0 {
			return true
		}
		id, ok := s.Results[len(s.Results)-1].(*ast.Ident)
		return ok && id.Name == "nil"
	}
	return false
}

// weaken makes a condition let more through: one that permits is always so, one that
// refuses never. Of conditions that are joined each is a mutant, but for an error
// that was looked at together with what came with it.
func (m *mutator) weaken(e ast.Expr, permits bool) {
	splits := token.LOR
	if permits {
		splits = token.LAND
	}
	if inner, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && inner.Op == splits && !ofError(inner) {
		m.weaken(inner.X, permits)
		m.weaken(inner.Y, permits)
		return
	}
	if permits {
		m.wrap(e, "(gateOff(%d) || (", "))", "true")
	} else {
		m.wrap(e, "(!gateOff(%d) && (", "))", "false")
	}
}

// ofError says whether a condition is about an error.
func ofError(e ast.Expr) (is bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		is = is || ok && strings.HasPrefix(id.Name, "err")
		return true
	})
	return is
}

func (m *mutator) drop(e ast.Expr) { m.wrap(e, "gateDrop(%d, ", ")", "nil") }

func (m *mutator) wrap(e ast.Expr, before, after, instead string) {
	from, to := m.fset.Position(e.Pos()), m.fset.Position(e.End())
	what := strings.Join(strings.Fields(string(m.source[from.Offset:to.Offset])), " ")
	m.found = append(m.found, mutant{id: m.next + len(m.found), at: from, gate: m.gate, what: what + " → " + instead})
	m.inserts = append(m.inserts, insert{from.Offset, fmt.Sprintf(before, m.found[len(m.found)-1].id)}, insert{to.Offset, after})
}

// mutated is the source with all that is inserted, on the lines where it was.
func (m *mutator) mutated() []byte {
	slices.SortStableFunc(m.inserts, func(a, b insert) int { return a.at - b.at })
	var out []byte
	from := 0
	for _, i := range m.inserts {
		out = append(append(out, m.source[from:i.at]...), i.text...)
		from = i.at
	}
	return append(out, m.source[from:]...)
}
