# Cuts the work into tasks, answers questions, and reports the result.
. /workspace/lib.sh
while take; do
  case $from/$type in
    orchestrator/task_assignment)
      say "got: $(text goal)"
      tell research_design task_assignment '{"task":"which titles must it get right?"}'
      # Too early on purpose: nothing is approved yet.
      tell growth_gtm task_assignment '{"task":"announce the filter"}'
      done_with
      ;;
    research_design/result)
      cases=$(text cases)
      tell engineering task_assignment "{\"task\":\"write it\",\"cases\":\"$cases\"}"
      tell qa_validation task_assignment "{\"task\":\"approve or reject what engineering sends\",\"cases\":\"$cases\"}"
      done_with
      ;;
    engineering/clarification)
      say "engineering asks: $(text question)"
      tell engineering answer '{"answer":"no, lower case only"}' --reply-to "$seq"
      done_with
      ;;
    qa_validation/result)
      tell orchestrator result "{\"program\":\"$(text program)\",\"rounds\":$(number rounds)}"
      say "approved after $(number rounds) rounds; reported"
      done_with
      ;;
    orchestrator/goodbye) done_with; exit 0 ;;
    *) done_with ;;
  esac
done
