-- One row when the step has been recorded.
SELECT step_id FROM train_steps WHERE step_id = {step_id:String} LIMIT 1
