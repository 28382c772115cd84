-- runs: which runs of entries are outstanding: sent and not over. Changes nothing.
-- KEYS: runs
-- ARGV: names of entries
-- RETURNS: now, then per entry a list of five per run: id, state, until, since (the moment of its state), holder
-- RULES: 2
-- @flags allow-oom
local runs = KEYS[1]
-- @include clock runs

local answer = {stamp(now)}
for at = 1, #ARGV do
  local list = {}
  for _, run in ipairs(read_runs(ARGV[at])) do
    if is_outstanding(run) then
      for _, part in ipairs({run.id, run.state, stamp(run.till), run.since, run.holder}) do
        list[#list + 1] = part
      end
    end
  end
  answer[#answer + 1] = list
end
return answer
