package api

import "net/http"

// modelContext is /mcp, the streamable HTTP transport of the Model Context
// Protocol. Host name, token and rate have been checked as for every request, and
// the tools use the engine as the token may.
func (s *Server) modelContext(w http.ResponseWriter, r *http.Request) {
	callOf(r).route = r.Pattern
	s.metrics.streams.WithLabelValues("mcp").Inc()
	defer s.metrics.streams.WithLabelValues("mcp").Dec()
	r.Body = newPatient(w, r.Body) // its size is bounded by the handler
	s.mcp.ServeHTTP(w, r)
}
